// FlashInfer's prefill for Hopper: one sequence, warp-specialised, tiles by TMA.
//
// Macros: CASE_HEAD_DIM, CASE_TYPE (CUTLASS element type), CASE_MASK (a MaskMode).
#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

// Q and O [rows, heads, dim], K and V [keys, kv_heads, dim], LSE [rows, heads] to the base of two.
extern "C" int prefill_sm90(CASE_TYPE *q, CASE_TYPE *k, CASE_TYPE *v, CASE_TYPE *o, float *lse, int rows, int keys, int heads, int kv_heads) {
  using namespace flashinfer;
  SinglePrefillParams<CASE_TYPE, CASE_TYPE, CASE_TYPE> params{};
  params.q_ptr = q, params.k_ptr = k, params.v_ptr = v, params.o_ptr = o, params.lse_ptr = lse;
  params.q_stride_n = params.o_stride_n = heads * CASE_HEAD_DIM;
  params.k_stride_n = params.v_stride_n = kv_heads * CASE_HEAD_DIM;
  params.q_stride_h = params.o_stride_h = params.k_stride_h = params.v_stride_h = CASE_HEAD_DIM;
  params.qo_len = rows, params.kv_len = keys;
  params.num_qo_heads = heads, params.num_kv_heads = kv_heads, params.group_size = heads / kv_heads;
  params.window_left = -1;
  params.causal = CASE_MASK == MaskMode::kCausal;
  params.additional_params.sm_scale = 1.f / std::sqrt(float(CASE_HEAD_DIM));
  return SinglePrefillWithKVCacheDispatched<CASE_HEAD_DIM, CASE_HEAD_DIM, CASE_MASK, false, DefaultAttention<false>>(params, 0);
}
