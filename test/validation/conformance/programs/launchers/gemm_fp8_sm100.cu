// CUTLASS's fp8 products for SM100 with a float scale per group of elements, one product and grouped ones.
//
// Macros: CASE_CTAS (of an MMA), CASE_OUT. Scales of A are per row and 128 elements of k, those of B per 128x128, m or n fastest.
#include <flashinfer/cutlass_utils.cuh>
#include <flashinfer/gemm/gemm_groupwise_sm100.cuh>
#include <flashinfer/gemm/group_gemm_fp8_groupwise_sm100.cuh>

using In = cutlass::float_e4m3_t;

#ifdef CASE_IS_GROUPED
// A [rows, k], B [groups, n, k], D [rows, n]; group i has rows offsets[i] up to offsets[i + 1].
extern "C" int grouped(void *integers, void *floats, In *a, In *b, float *a_scale, float *b_scale, CASE_OUT *d, int *offsets,
                       int rows, int n, int k, int groups) {
  return flashinfer::group_gemm::CutlassFP8GroupwiseScaledGroupGEMMSM100<1, 128, 128, false, CASE_CTAS>(
      integers, 1 << 20, floats, 1 << 24, a, b, a_scale, b_scale, d, offsets, rows, n, k, groups, 0);
}
#else
// A [m, k], B [n, k], D [m, n].
extern "C" int product(void *workspace, In *a, In *b, float *a_scale, float *b_scale, CASE_OUT *d, int m, int n, int k) {
  return flashinfer::gemm::CutlassGroupwiseScaledGEMMSM100<1, 128, 128, false, CASE_CTAS>(workspace, 1 << 24, a, b, a_scale,
                                                                                    b_scale, d, m, n, k, 1, 0);
}
#endif
