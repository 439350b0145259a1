// RUN: attn-opt --split-input-file --verify-diagnostics %s

func.func @f(%n: tensor<512xf8E4M3FN>, %f: tensor<?x4xf32>, %w: tensor<?x64xbf16>) {
  // expected-error @below {{'attn.latent_rows' op expects narrow to be a tensor [rows, columns], [pages, page, columns] or [pages, page, 1, columns], got tensor<512xf8E4M3FN>}}
  %rows = "attn.latent_rows"(%n, %f, %w) {group = 128 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<512xf8E4M3FN>, tensor<?x4xf32>, tensor<?x64xbf16>) -> !attn.view<tensor<?x576xbf16>, tensor<512xf8E4M3FN>>
  func.return
}

// -----

func.func @f(%n: tensor<?x?xf8E4M3FN>, %f: tensor<?x4xf32>, %w: tensor<?x64xbf16>) {
  // expected-error @below {{'attn.latent_rows' op expects narrow to have static columns, and a static page, got tensor<?x?xf8E4M3FN>}}
  %rows = "attn.latent_rows"(%n, %f, %w) {group = 128 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x?xf8E4M3FN>, tensor<?x4xf32>, tensor<?x64xbf16>) -> !attn.view<tensor<?x576xbf16>, tensor<?x?xf8E4M3FN>>
  func.return
}

// -----

func.func @f(%n: tensor<?x512xf8E4M3FN>, %f: tensor<?x4xf32>, %w: tensor<?x64xbf16>) {
  // expected-error @below {{'attn.latent_rows' op expects a group of 1 to 512 columns, got 0}}
  %rows = "attn.latent_rows"(%n, %f, %w) {group = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x512xf8E4M3FN>, tensor<?x4xf32>, tensor<?x64xbf16>) -> !attn.view<tensor<?x576xbf16>, tensor<?x512xf8E4M3FN>>
  func.return
}

// -----

func.func @f(%n: tensor<?x512xf8E5M2>, %f: tensor<?x4xf32>, %w: tensor<?x64xbf16>) {
  // expected-error @below {{'attn.latent_rows' op expects narrow to be a tensor of f8E4M3FN, got tensor<?x512xf8E5M2>}}
  %rows = "attn.latent_rows"(%n, %f, %w) {group = 128 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x512xf8E5M2>, tensor<?x4xf32>, tensor<?x64xbf16>) -> !attn.view<tensor<?x576xbf16>, tensor<?x512xf8E5M2>>
  func.return
}

// -----

func.func @f(%n: tensor<?x512xf8E4M3FN>, %f: tensor<?x4xf16>, %w: tensor<?x64xbf16>) {
  // expected-error @below {{'attn.latent_rows' op expects scales to be a tensor of f32 or ui8, got tensor<?x4xf16>}}
  %rows = "attn.latent_rows"(%n, %f, %w) {group = 128 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x512xf8E4M3FN>, tensor<?x4xf16>, tensor<?x64xbf16>) -> !attn.view<tensor<?x576xbf16>, tensor<?x512xf8E4M3FN>>
  func.return
}

// -----

func.func @f(%n: tensor<?x512xf8E4M3FN>, %f: tensor<?x3xf32>, %w: tensor<?x64xbf16>) {
  // expected-error @below {{'attn.latent_rows' op expects scales to have 4 columns at least, got tensor<?x3xf32>}}
  %rows = "attn.latent_rows"(%n, %f, %w) {group = 128 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x512xf8E4M3FN>, tensor<?x3xf32>, tensor<?x64xbf16>) -> !attn.view<tensor<?x576xbf16>, tensor<?x512xf8E4M3FN>>
  func.return
}

// -----

func.func @f(%n: tensor<?x8x512xf8E4M3FN>, %f: tensor<?x8x4xf32>, %w: tensor<?x64xbf16>) {
  // expected-error @below {{'attn.latent_rows' op expects wide to have the rows of tensor<?x8x512xf8E4M3FN>, got tensor<?x64xbf16>}}
  %rows = "attn.latent_rows"(%n, %f, %w) {group = 128 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x8x512xf8E4M3FN>, tensor<?x8x4xf32>, tensor<?x64xbf16>) -> !attn.view<tensor<?x576xbf16>, tensor<?x8x512xf8E4M3FN>>
  func.return
}

// -----

func.func @f(%n: tensor<?x512xf8E4M3FN>, %f: tensor<?x64xbf16>, %w: tensor<?x64xbf16>) {
  // expected-error @below {{'attn.latent_rows' op expects at most one tensor as wide, got 2}}
  %rows = "attn.latent_rows"(%n, %f, %w) {group = 128 : i64, operandSegmentSizes = array<i32: 1, 0, 2>}
    : (tensor<?x512xf8E4M3FN>, tensor<?x64xbf16>, tensor<?x64xbf16>) -> !attn.view<tensor<?x576xbf16>, tensor<?x512xf8E4M3FN>>
  func.return
}

// -----

func.func @f(%n: tensor<?x512xf8E4M3FN>, %f: tensor<?x4xf32>, %w: tensor<?x64xbf16>) {
  // expected-error @below {{'attn.latent_rows' op expects a result of type !attn.view<tensor<?x576xbf16>, tensor<?x512xf8E4M3FN>>, got !attn.view<tensor<?x512xbf16>, tensor<?x512xf8E4M3FN>>}}
  %rows = "attn.latent_rows"(%n, %f, %w) {group = 128 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
    : (tensor<?x512xf8E4M3FN>, tensor<?x4xf32>, tensor<?x64xbf16>) -> !attn.view<tensor<?x512xbf16>, tensor<?x512xf8E4M3FN>>
  func.return
}

// -----

func.func @heads(%narrow: tensor<?x16x2x512xf8E4M3FN>) {
  // expected-error @below {{'attn.latent_rows' op expects narrow of 1 head, got tensor<?x16x2x512xf8E4M3FN>}}
  %0 = "attn.latent_rows"(%narrow) {group = 512 : i64, operandSegmentSizes = array<i32: 1, 0, 0>}
    : (tensor<?x16x2x512xf8E4M3FN>) -> !attn.view<tensor<?x16x2x512xbf16>, tensor<?x16x2x512xf8E4M3FN>>
  func.return
}
