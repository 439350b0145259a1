// CUTLASS's block-scaled products for SM100: MXFP8 and NVFP4.
//
// Macros: CASE_IS_NVFP4, CASE_TILE_M, CASE_TILE_N, CASE_TILE_K (of a CTA), CASE_CLUSTER_M, CASE_CLUSTER_N, CASE_CTAS (_1SM or _2SM). D is half.
#define ENABLE_BF16
#define ENABLE_FP4
#ifdef CASE_IS_NVFP4
#include <flashinfer/gemm/fp4_gemm_cutlass_template.h>
#else
#include <flashinfer/gemm/mxfp8_gemm_cutlass_template.h>
#endif

#define TILED(MACRO, ...) MACRO(half, __VA_ARGS__, 1, CASE_CTAS)
namespace flashinfer::gemm {
#ifdef CASE_IS_NVFP4
TILED(INSTANTIATE_FP4_GEMM_KERNEL_LAUNCHER, CASE_TILE_M, CASE_TILE_N, CASE_TILE_K, CASE_CLUSTER_M, CASE_CLUSTER_N)
#else
TILED(INSTANTIATE_MXFP8_GEMM_KERNEL_LAUNCHER, CASE_TILE_M, CASE_TILE_N, CASE_TILE_K, CASE_CLUSTER_M, CASE_CLUSTER_N)
#endif
}  // namespace flashinfer::gemm

// A [m, k], B [n, k], scales in blocks of 128 rows and 4 columns, D [m, n].
extern "C" int scaled(half *d, void *a, void *b, void *a_scale, void *b_scale, float *alpha, char *workspace, int m, int n,
                      int k) {
  using namespace flashinfer::gemm;
  using cute::Int;
  size_t const bytes = 1 << 24;
#ifdef CASE_IS_NVFP4
  genericFp4GemmKernelLauncher<half, Int<CASE_TILE_M>, Int<CASE_TILE_N>, Int<CASE_TILE_K>, Int<CASE_CLUSTER_M>, Int<CASE_CLUSTER_N>, Int<1>, CASE_CTAS>(
      d, a, b, a_scale, b_scale, alpha, m, n, k, 1, {}, workspace, bytes, 0, nullptr);
#else
  genericMxfp8GemmKernelLauncher<half, Int<CASE_TILE_M>, Int<CASE_TILE_N>, Int<CASE_TILE_K>, Int<CASE_CLUSTER_M>, Int<CASE_CLUSTER_N>, Int<1>, CASE_CTAS>(
      d, a, b, a_scale, b_scale, m, n, k, 1, {}, workspace, bytes, 0, nullptr);
#endif
  return 0;
}
