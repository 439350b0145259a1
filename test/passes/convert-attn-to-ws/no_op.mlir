// RUN: attn-opt --convert-attn-to-ws %s | FileCheck %s

// A kernel is left alone.

// CHECK: "ws.kernel"
// CHECK: sym_name = "k"
"ws.kernel"() ({
^bb0:
}) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()
