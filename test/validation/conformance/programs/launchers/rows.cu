// FlashInfer's small kernels over rows: keys and values appended to their pages, and positions turned into Q and K.
//
// Macros: CASE_TYPE.
#include <flashinfer/page.cuh>
#include <flashinfer/pos_enc.cuh>

// K and V [pages, page, heads, dim] get rows [count, heads, dim] at the positions of their sequences.
extern "C" int append(CASE_TYPE *k, CASE_TYPE *v, CASE_TYPE *new_k, CASE_TYPE *new_v, int *table, int *offsets, int *last,
                      int *sequences, int *positions, int count, int batch, int page, int heads, int dim) {
  using namespace flashinfer;
  paged_kv_t<CASE_TYPE, int> pages(heads, page, dim, batch, QKVLayout::kNHD, k, v, table, offsets, last);
  return AppendPagedKVCache(pages, new_k, new_v, sequences, positions, count, heads * dim, dim, heads * dim, dim);
}

// Q [rows, heads, dim] and K [rows, kv_heads, dim] turned by their positions, halves of a row together.
extern "C" int rotate(CASE_TYPE *q, CASE_TYPE *k, CASE_TYPE *q_out, CASE_TYPE *k_out, int *positions, int rows, int heads,
                      int kv_heads, int dim) {
  int const q_row = heads * dim, k_row = kv_heads * dim;
  return flashinfer::BatchQKApplyRotaryPosIds(q, k, q_out, k_out, positions, rows, heads, kv_heads, dim, dim, q_row, dim,
                                              k_row, dim, q_row, dim, k_row, dim, false, 1.f, 1e4f);
}
