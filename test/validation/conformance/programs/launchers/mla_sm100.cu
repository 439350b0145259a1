// CUTLASS's latent decode for SM100: one query of 128 heads per sequence against a latent cache in pages.
//
// Macros: CASE_IN, CASE_OUT (CUTLASS element types).
#include <flashinfer/attention/cutlass_mla.cuh>

// Q [batch, 128, 576], cache [pages, page, 576], page table [batch, pages of a sequence], O [batch, 128, 512].
extern "C" int mla_sm100(void *workspace, CASE_OUT *o, float *lse, CASE_IN *q, CASE_IN *cache, int *lengths, int *table, int batch,
                         int pages_per_sequence, int pages, int page) {
  return flashinfer::attention::runMla<CASE_IN, CASE_OUT>(workspace, o, lse, q, cache, lengths, table, batch, pages_per_sequence,
                                                pages, page, 0, 0);
}
