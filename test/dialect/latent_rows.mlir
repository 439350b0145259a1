// RUN: %roundtrip | FileCheck %s
// RUN: attn-opt --split-input-file --cse %s | FileCheck %s --check-prefix=CSE

// Rows of a latent cache in 8 bits.

// CHECK-LABEL: func.func @v32
// CHECK: "attn.latent_rows"(%{{.*}}, %{{.*}}, %{{.*}}) {group = 128 : i64
// CSE-LABEL: func.func @v32
// CSE-COUNT-1: "attn.latent_rows"
// CSE-NOT: "attn.latent_rows"
func.func @v32(%q: tensor<?x64x576xbf16>, %narrow: tensor<?x512xf8E4M3FN>, %indices: tensor<?x?xi32>, %scale: f32,
               %scales: tensor<?x4xf32>, %wide: tensor<?x64xbf16>)
    -> (tensor<?x64x512xbf16>, tensor<?x64x512xbf16>) {
  %kv = "attn.latent_rows"(%narrow, %scales, %wide) {group = 128 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x512xf8E4M3FN>, tensor<?x4xf32>, tensor<?x64xbf16>)
      -> !attn.view<tensor<?x576xbf16>, tensor<?x512xf8E4M3FN>>
  %again = "attn.latent_rows"(%narrow, %scales, %wide) {group = 128 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x512xf8E4M3FN>, tensor<?x4xf32>, tensor<?x64xbf16>)
      -> !attn.view<tensor<?x576xbf16>, tensor<?x512xf8E4M3FN>>
  %o, %lse, %max = "attn.sparse_mla"(%q, %kv, %indices, %scale)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, !attn.view<tensor<?x576xbf16>, tensor<?x512xf8E4M3FN>>, tensor<?x?xi32>, f32)
      -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  %o2, %lse2, %max2 = "attn.sparse_mla"(%q, %again, %indices, %scale)
    {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<?x64x576xbf16>, !attn.view<tensor<?x576xbf16>, tensor<?x512xf8E4M3FN>>, tensor<?x?xi32>, f32)
      -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
  func.return %o, %o2 : tensor<?x64x512xbf16>, tensor<?x64x512xbf16>
}

// -----

// CHECK-LABEL: func.func @in_pages
// CSE-LABEL: func.func @in_pages
// CHECK: "attn.latent_rows"{{.*}} -> !attn.view<tensor<?x512xbf16>, tensor<?x16x448xf8E4M3FN>>
func.func @in_pages(%narrow: tensor<?x16x448xf8E4M3FN>, %scales: tensor<?x16x8xui8>, %wide: tensor<?x16x64xbf16>)
    -> !attn.view<tensor<?x512xbf16>, tensor<?x16x448xf8E4M3FN>> {
  %kv = "attn.latent_rows"(%narrow, %scales, %wide) {group = 64 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x16x448xf8E4M3FN>, tensor<?x16x8xui8>, tensor<?x16x64xbf16>)
      -> !attn.view<tensor<?x512xbf16>, tensor<?x16x448xf8E4M3FN>>
  func.return %kv : !attn.view<tensor<?x512xbf16>, tensor<?x16x448xf8E4M3FN>>
}

// -----

// CHECK-LABEL: func.func @of_sequences
// CSE-LABEL: func.func @of_sequences
// CHECK: "attn.paged"{{.*}} -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x16x1x512xf8E4M3FN>>
func.func @of_sequences(%narrow: tensor<?x16x1x512xf8E4M3FN>, %table: tensor<?x?xi32>, %wide: tensor<?x16x1x64xbf16>)
    -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x16x1x512xf8E4M3FN>> {
  %pool = "attn.latent_rows"(%narrow, %wide) {group = 512 : i64, operandSegmentSizes = array<i32: 1, 0, 1>}
    : (tensor<?x16x1x512xf8E4M3FN>, tensor<?x16x1x64xbf16>)
      -> !attn.view<tensor<?x16x1x576xbf16>, tensor<?x16x1x512xf8E4M3FN>>
  %kv = "attn.paged"(%pool, %table)
    : (!attn.view<tensor<?x16x1x576xbf16>, tensor<?x16x1x512xf8E4M3FN>>, tensor<?x?xi32>)
      -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x16x1x512xf8E4M3FN>>
  func.return %kv : !attn.view<tensor<?x?x1x576xbf16>, tensor<?x16x1x512xf8E4M3FN>>
}
