// FlashInfer's decode of one sequence on CUDA cores with cp.async, as written for Ampere; long sequences are split.
//
// Macros: CASE_HEAD_DIM, CASE_TYPE.
#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/variants.cuh>

// Q and O [heads, dim], K and V [keys, kv_heads, dim].
extern "C" int decode(CASE_TYPE *q, CASE_TYPE *k, CASE_TYPE *v, CASE_TYPE *o, CASE_TYPE *workspace, int keys, int heads, int kv_heads) {
  using namespace flashinfer;
  using Params = SingleDecodeParams<CASE_TYPE, CASE_TYPE, CASE_TYPE>;
  Params params(q, k, v, o, nullptr, keys, heads, kv_heads, QKVLayout::kNHD, CASE_HEAD_DIM, -1, 0.f,
                1.f / std::sqrt(float(CASE_HEAD_DIM)), 1.f, 1e4f);
  return SingleDecodeWithKVCacheDispatched<CASE_HEAD_DIM, PosEncodingMode::kNone, DefaultAttention<false, false, false, false>>(
      params, workspace, 0);
}
