// FlashInfer's latent decode for Hopper: two warpgroups per 64 rows of one sequence, keys in pages, splits merged behind a
// barrier of the grid. The plan is made on the host and copied to the device.
//
// Macros: CASE_TYPE (CUDA element type).
#include <flashinfer/attention/mla_hopper.cuh>
#include <flashinfer/attention/mla_params.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <vector>

// Q [batch, heads, 512] and [batch, heads, 64], caches [pages, page, 512] and [pages, page, 64], O [batch, heads, 512], LSE
// [batch, heads] to the base of two. `queries`, `pages` and `lengths` are in the host's memory: [batch + 1], [batch + 1], [batch].
extern "C" int mla_sm90(CASE_TYPE *q_nope, CASE_TYPE *q_pe, CASE_TYPE *ckv, CASE_TYPE *kpe, CASE_TYPE *o, float *lse,
                        CASE_TYPE *floats, int *integers, int *table, int *queries, int *pages, int *lengths, int batch, int heads,
                        int page) {
  using namespace flashinfer;
  size_t const bytes = 1 << 21, staged_bytes = 1 << 21;
  std::vector<char> locked(staged_bytes);
  size_t staged = 0;
  MLAPlanInfo plan;
  if (cudaError_t error = MLAPlan<int>(floats, bytes, integers, locked.data(), staged_bytes, plan, staged, queries, pages, lengths,
                                       batch, heads, 512, false, 0))
    return error;
  cudaMemcpyAsync(integers, locked.data(), staged, cudaMemcpyHostToDevice, 0);
  auto at = [&](int64_t offset) { return GetPtrFromBaseOffset<int>(integers, offset); };
  MLAParams<CASE_TYPE, CASE_TYPE, CASE_TYPE, int> params{};
  params.q_nope = q_nope, params.q_pe = q_pe, params.ckv = ckv, params.kpe = kpe;
  params.final_o = o, params.final_lse = lse, params.kv_indices = table;
  params.partial_o = GetPtrFromBaseOffset<CASE_TYPE>(floats, plan.partial_o_offset);
  params.partial_lse = GetPtrFromBaseOffset<float>(floats, plan.partial_lse_offset);
  params.q_indptr = at(plan.q_indptr_offset), params.kv_indptr = at(plan.kv_indptr_offset);
  params.partial_indptr = at(plan.partial_indptr_offset);
  params.q_len = at(plan.q_len_offset), params.kv_len = at(plan.kv_len_offset);
  params.q_start = at(plan.q_start_offset), params.kv_start = at(plan.kv_start_offset);
  params.kv_end = at(plan.kv_end_offset), params.work_indptr = at(plan.work_indptr_offset);
  params.merge_packed_offset_start = at(plan.merge_packed_offset_start_offset);
  params.merge_packed_offset_end = at(plan.merge_packed_offset_end_offset);
  params.merge_partial_packed_offset_start = at(plan.merge_partial_packed_offset_start_offset);
  params.merge_partial_packed_offset_end = at(plan.merge_partial_packed_offset_end_offset);
  params.merge_partial_stride = at(plan.merge_partial_stride_offset);
  params.block_size = uint_fastdiv(page), params.num_heads = uint_fastdiv(heads);
  params.q_nope_stride_n = params.o_stride_n = heads * 512, params.q_nope_stride_h = params.o_stride_h = 512;
  params.q_pe_stride_n = heads * 64, params.q_pe_stride_h = 64;
  params.ckv_stride_page = page * 512, params.ckv_stride_n = 512;
  params.kpe_stride_page = page * 64, params.kpe_stride_n = 64;
  params.sm_scale = 1.f / std::sqrt(192.f);
  return mla::BatchMLAPageAttentionHopper<MaskMode::kNone, 512, 64>(params, plan.num_blks_x, plan.num_blks_y, 0);
}
