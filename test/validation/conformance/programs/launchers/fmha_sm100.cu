// CUTLASS's forward attention for SM100 over packed sequences, and the kernel that plans its work tiles.
//
// Macros: CASE_HEAD_DIM_QK, CASE_HEAD_DIM_VO, CASE_IN, CASE_OUT (CUTLASS element types), CASE_MASK (CausalMask or ResidualMask).
#include <flashinfer/attention/blackwell/fmha_cutlass_sm100.cuh>
#include <flashinfer/attention/blackwell/plan.cuh>

namespace {
constexpr int kTileQ = 256, kTileKV = 128;
constexpr bool kIsCausal = cute::is_same_v<flashinfer::CASE_MASK, flashinfer::CausalMask>;
}  // namespace

// Q and O [rows, heads, dim], K and V [keys, kv_heads, dim], offsets [batch + 1]; the plan's outputs are int32.
extern "C" int fmha_sm100(CASE_IN *q, CASE_IN *k, CASE_IN *v, CASE_OUT *o, float *lse, int *q_offsets, int *k_offsets, int *work_offsets,
                          int *tiles, int *heads, int *batches, void *workspace, int rows, int keys, int head_count,
                          int kv_head_count, int batch, int longest, int buckets) {
  auto planned = flashinfer::plan_kernel_wrapper(q_offsets, k_offsets, nullptr, nullptr, work_offsets, tiles, heads,
                                                 batches, kTileQ, batch, head_count, buckets, kIsCausal, false, 0);
  if (planned != cudaSuccess) return planned;
  using QK = cute::Shape<cute::Int<kTileQ>, cute::Int<kTileKV>, cute::Int<CASE_HEAD_DIM_QK>>;
  using PV = cute::Shape<cute::Int<kTileQ>, cute::Int<CASE_HEAD_DIM_VO>, cute::Int<kTileKV>>;
  return flashinfer::run_fmha_fwd<CASE_IN, CASE_OUT, int, QK, PV, flashinfer::CASE_MASK>(
      workspace, q, k, v, q_offsets, k_offsets, work_offsets, tiles, heads, batches, o, lse, kIsCausal,
      1.0 / std::sqrt(double(CASE_HEAD_DIM_QK)), 1.0, 1.0, 1.0, 1.0, head_count, kv_head_count, CASE_HEAD_DIM_QK, CASE_HEAD_DIM_VO,
      head_count * CASE_HEAD_DIM_QK, CASE_HEAD_DIM_QK, kv_head_count * CASE_HEAD_DIM_QK, CASE_HEAD_DIM_QK, kv_head_count * CASE_HEAD_DIM_VO,
      CASE_HEAD_DIM_VO, batch, rows, keys, longest, 0);
}
