"""The families of instructions of PTX: `targets | example | test`, or `!reason` for the test."""

# "both", or "100" and "90" for sm_100a and sm_90a only
SECTIONS: dict[str, str] = {
    "1 Tensor memory": r"""
100 | tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r1], 64; | test_isa_tcgen05::test_allocation_that_never_fits_is_a_deadlock
100 | tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [r1], r2; | test_isa_tcgen05::test_product_of_a_cta_pair
100 | tcgen05.dealloc.cta_group::1.sync.aligned.b32 r1, 64; | test_isa_tcgen05::test_misuse_of_tensor_memory
100 | tcgen05.dealloc.cta_group::2.sync.aligned.b32 r1, 64; | test_isa_tcgen05::test_product_of_a_cta_pair
100 | tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; | test_isa_tcgen05::test_allocation_that_never_fits_is_a_deadlock
100 | tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned; | test_isa_tcgen05::test_product_of_a_cta_pair
""",
    "2 Tensor core: tcgen05.mma": r"""
100 | tcgen05.mma.cta_group::1.kind::f16 [r1], rd1, rd2, r2, p1; | test_isa_tcgen05::test_gemm_of_one_cta
100 | tcgen05.mma.cta_group::2.kind::f16 [r1], rd1, rd2, r2, p1; | test_isa_tcgen05::test_product_of_a_cta_pair
100 | tcgen05.mma.cta_group::1.kind::f16 [r1], [r3], rd2, r2, p1; | test_isa_tcgen05::test_product_with_a_in_tensor_memory
100 | tcgen05.mma.cta_group::1.kind::f16 [r1], rd1, rd2, r2, {r4, r5, r6, r7}, p1; | test_coverage_tensor::test_masked_lanes_keep_what_they_had
100 | tcgen05.mma.cta_group::1.kind::f16 [r1], rd1, rd2, r2, p1, 3; | test_coverage_tensor::test_scale_of_the_input_and_collectors
100 | tcgen05.mma.cta_group::1.kind::f16.collector::a::fill [r1], rd1, rd2, r2, p1; | test_coverage_tensor::test_scale_of_the_input_and_collectors
100 | tcgen05.mma.cta_group::1.kind::f16.ashift [r1], [r3], rd2, r2, p1; | test_coverage_tensor::test_ashift_moves_rows_up
100 | tcgen05.mma.cta_group::1.kind::tf32 [r1], rd1, rd2, r2, p1; | test_coverage_tensor::test_dense_kinds
100 | tcgen05.mma.cta_group::1.kind::f8f6f4 [r1], rd1, rd2, r2, p1; | test_coverage_tensor::test_dense_kinds
100 | tcgen05.mma.cta_group::1.kind::i8 [r1], rd1, rd2, r2, p1; | test_coverage_tensor::test_integer_kind
100 | tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [r1], rd1, rd2, r2, [r3], [r4], p1; | test_coverage_tensor::test_block_scales
100 | tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32 [r1], rd1, rd2, r2, [r3], [r4], p1; | test_coverage_tensor::test_block_scales
100 | tcgen05.mma.cta_group::1.kind::mxf4.block_scale.scale_vec::2X [r1], rd1, rd2, r2, [r3], [r4], p1; | test_coverage_tensor::test_block_scales
100 | tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [r1], rd1, rd2, r2, [r3], [r4], p1; | test_coverage_tensor::test_block_scales
100 | tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [r1], rd1, rd2, r2, [r3], [r4], p1; | test_coverage_tensor::test_block_scales
100 | tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::2X [r1], rd1, rd2, r2, [r3], [r4], p1; | test_coverage_tensor::test_block_scales
100 | tcgen05.mma.sp.cta_group::1.kind::f16 [r1], rd1, rd2, [r3], r2, p1; | test_coverage_tensor::test_sparse
100 | tcgen05.mma.sp.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [r1], rd1, rd2, [r3], r2, [r4], [r5], p1; | test_coverage_tensor::test_sparse_with_block_scales
100 | tcgen05.mma.ws.cta_group::1.kind::f16 [r1], rd1, rd2, r2, p1; | test_coverage_tensor::test_weight_stationary
100 | tcgen05.mma.ws.cta_group::1.kind::f16.collector::b1::fill [r1], [r3], rd2, r2, p1, rd3; | test_coverage_tensor::test_weight_stationary
100 | tcgen05.mma.ws.sp.cta_group::1.kind::f16 [r1], rd1, rd2, [r3], r2, p1; | test_coverage_tensor::test_weight_stationary_sparse
""",
    "4 Tensor memory: ld, st, cp, shift": r"""
100 | tcgen05.ld.sync.aligned.32x32b.x2.b32 {r1, r2}, [r3]; | test_isa_tcgen05::test_store_and_load_tensor_memory
100 | tcgen05.ld.sync.aligned.16x64b.x2.b32 {r1, r2}, [r3]; | test_coverage_tensor::test_shapes_of_loads_and_stores
100 | tcgen05.ld.sync.aligned.16x128b.x1.b32 {r1, r2}, [r3]; | test_coverage_tensor::test_shapes_of_loads_and_stores
100 | tcgen05.ld.sync.aligned.16x256b.x1.b32 {r1, r2, r4, r5}, [r3]; | test_coverage_tensor::test_shapes_of_loads_and_stores
100 | tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {r1, r2}, [r3], 2; | test_coverage_tensor::test_shapes_of_loads_and_stores
100 | tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {r1, r2}, [r3]; | test_coverage_tensor::test_packed_loads_and_unpacked_stores
100 | tcgen05.st.sync.aligned.32x32b.x2.b32 [r3], {r1, r2}; | test_isa_tcgen05::test_misuse_of_tensor_memory
100 | tcgen05.st.sync.aligned.16x64b.x2.b32 [r3], {r1, r2}; | test_coverage_tensor::test_shapes_of_loads_and_stores
100 | tcgen05.st.sync.aligned.16x128b.x1.b32 [r3], {r1, r2}; | test_coverage_tensor::test_shapes_of_loads_and_stores
100 | tcgen05.st.sync.aligned.16x256b.x1.b32 [r3], {r1, r2, r4, r5}; | test_coverage_tensor::test_shapes_of_loads_and_stores
100 | tcgen05.st.sync.aligned.16x32bx2.x2.b32 [r3], 2, {r1, r2}; | test_coverage_tensor::test_shapes_of_loads_and_stores
100 | tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [r3], {r1, r2}; | test_coverage_tensor::test_packed_loads_and_unpacked_stores
100 | tcgen05.wait::ld.sync.aligned; | test_isa_tcgen05::test_store_and_load_tensor_memory
100 | tcgen05.wait::st.sync.aligned; | test_isa_tcgen05::test_a_register_dependency_is_respected_without_the_wait
100 | tcgen05.cp.cta_group::1.128x256b [r1], rd1; | test_coverage_tensor::test_copies_to_tensor_memory
100 | tcgen05.cp.cta_group::1.128x128b [r1], rd1; | test_isa_tcgen05::test_copy_from_shared_to_tensor_memory
100 | tcgen05.cp.cta_group::1.4x256b [r1], rd1; | test_coverage_tensor::test_copies_to_tensor_memory
100 | tcgen05.cp.cta_group::1.64x128b.warpx2::02_13 [r1], rd1; | test_coverage_tensor::test_copies_to_tensor_memory
100 | tcgen05.cp.cta_group::1.64x128b.warpx2::01_23 [r1], rd1; | test_coverage_tensor::test_copies_to_tensor_memory
100 | tcgen05.cp.cta_group::1.32x128b.warpx4 [r1], rd1; | test_coverage_tensor::test_copies_to_tensor_memory
100 | tcgen05.cp.cta_group::2.32x128b.warpx4 [r1], rd1; | test_coverage_tensor::test_copies_and_shifts_of_a_pair
100 | tcgen05.cp.cta_group::1.128x256b.b8x16.b6x16_p32 [r1], rd1; | test_coverage_tensor::test_copies_that_unpack
100 | tcgen05.cp.cta_group::1.128x256b.b8x16.b4x16_p64 [r1], rd1; | test_coverage_tensor::test_copies_that_unpack
100 | tcgen05.shift.cta_group::1.down [r1]; | test_coverage_tensor::test_shift_moves_one_partition_down
100 | tcgen05.shift.cta_group::2.down [r1]; | test_coverage_tensor::test_copies_and_shifts_of_a_pair
""",
    "5 Tensor core: order": r"""
100 | tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [rd1]; | test_coverage_tensor::test_commit_by_generic_address
100 | tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r1]; | test_isa_tcgen05::test_copy_from_shared_to_tensor_memory
100 | tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [r1], h1; | test_isa_tcgen05::test_product_of_a_cta_pair
100 | tcgen05.fence::before_thread_sync; | test_isa_tcgen05::test_misuse_of_tensor_memory
100 | tcgen05.fence::after_thread_sync; | test_isa_tcgen05::test_misuse_of_tensor_memory
""",
    "6 mbarrier": r"""
both | mbarrier.init.shared::cta.b64 [r1], 1; | test_isa_mbarrier::test_polling_a_barrier_that_nobody_completes_is_a_deadlock
both | mbarrier.inval.shared::cta.b64 [r1]; | test_isa_mbarrier::test_misuse
both | mbarrier.arrive.shared::cta.b64 rd1, [r1]; | test_isa_mbarrier::test_initial_bits_follow_the_encoding
both | mbarrier.arrive.shared::cta.b64 rd1, [r1], 2; | test_isa_mbarrier::test_misuse
both | mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r1]; | test_isa_mbarrier::test_remote_arrival
both | mbarrier.arrive.relaxed.cta.shared::cta.b64 rd1, [r1], 2; | test_coverage_copies::test_waits_by_token_and_drops
both | mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 1024; | test_isa_mbarrier::test_deadlock_report_names_each_warp_and_its_barrier
both | mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [r1], 1024; | test_coverage_copies::test_stores_that_signal_the_other_cta
both | mbarrier.arrive.noComplete.shared::cta.b64 rd1, [r1], 1; | test_isa_mbarrier::test_misuse
both | mbarrier.arrive_drop.shared::cta.b64 rd1, [r1]; | test_isa_mbarrier::test_tokens_and_pending_counts
both | mbarrier.arrive_drop.expect_tx.shared::cta.b64 rd1, [r1], 16; | test_coverage_copies::test_waits_by_token_and_drops
both | mbarrier.arrive_drop.noComplete.shared::cta.b64 rd1, [r1], 1; | test_coverage_copies::test_waits_by_token_and_drops
both | mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r1], 1024; | test_isa_mbarrier::test_transactions_keep_a_phase_open
both | mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [r1], 1024; | test_isa_mbarrier::test_transactions_keep_a_phase_open
both | mbarrier.test_wait.shared::cta.b64 p1, [r1], rd1; | test_isa_mbarrier::test_parity_on_a_fresh_barrier
both | mbarrier.test_wait.parity.shared::cta.b64 p1, [r1], r2; | test_isa_mbarrier::test_polling_a_barrier_that_nobody_completes_is_a_deadlock
both | mbarrier.try_wait.shared::cta.b64 p1, [r1], rd1; | test_coverage_copies::test_waits_by_token_and_drops
both | mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p1, [r1], r2, 1000; | test_coverage_copies::test_stores_that_signal_the_other_cta
both | mbarrier.pending_count.b64 r1, rd1; | test_isa_mbarrier::test_tokens_and_pending_counts
both | cp.async.mbarrier.arrive.shared::cta.b64 [r1]; | test_isa_copies::test_cp_async_arrives_on_an_mbarrier
both | cp.async.mbarrier.arrive.noinc.shared::cta.b64 [r1]; | test_isa_copies::test_cp_async_arrives_on_an_mbarrier
""",
    "7 TMA and bulk copies": r"""
both | cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r1], [rd1], r2, [r3]; | test_isa_copies::test_bulk_copies_in_and_out
both | cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [r1], [rd1], r2, [r3], h1; | test_coverage_copies::test_bulk_multicast
both | cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [r1], [rd1], r2, [r3], rd2; | test_coverage_copies::test_bulk_multicast
both | cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r1], [rd1], r2, [r3]; | test_isa_copies::test_bulk_copies_in_and_out
both | cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [r1], [r4], r2, [r3]; | test_coverage_copies::test_bulk_copies_between_ctas
both | cp.async.bulk.global.shared::cta.bulk_group [rd1], [r1], r2; | test_isa_copies::test_bulk_copies_in_and_out
100 | cp.async.bulk.global.shared::cta.bulk_group.cp_mask [rd1], [r1], r2, h1; | test_coverage_copies::test_bulk_stores_with_a_byte_mask_and_reductions
both | cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [rd1], [r1], r2; | test_isa_copies::test_bulk_reduction
both | cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [rd1], [r1], r2; | test_coverage_copies::test_bulk_stores_with_a_byte_mask_and_reductions
both | cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [r1], [r4], r2, [r3]; | test_coverage_copies::test_bulk_copies_between_ctas
both | cp.async.bulk.prefetch.L2.global [rd1], r2; | test_coverage_copies::test_bulk_multicast
both | cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r1], [rd1, {r2}], [r3]; | test_coverage_copies::test_tensor_loads_of_every_rank
both | cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r1], [rd1, {r2, r4}], [r3]; | test_isa_copies::test_tensor_load_with_swizzle_and_edges
both | cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r1], [rd1, {r2, r4, r5}], [r3]; | test_coverage_copies::test_tensor_loads_of_every_rank
both | cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r1], [rd1, {r2, r4, r5, r6}], [r3]; | test_coverage_copies::test_tensor_loads_of_every_rank
both | cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r1], [rd1, {r2, r4, r5, r6, r7}], [r3]; | test_coverage_copies::test_tensor_loads_of_every_rank
both | cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [r1], [rd1, {r2, r4}], [r3]; | test_isa_copies::test_faults_of_loads_name_the_instruction
both | cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [r1], [rd1, {r2, r4}], [r3], h1; | test_isa_copies::test_multicast_fills_every_cta_of_the_mask
100 | cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [r1], [rd1, {r2, r4}], [r3]; | test_isa_copies::test_pair_load_signals_the_even_barrier
100 | cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [r1], [rd1, {r2, r4}], [r3]; | test_isa_copies::test_pair_load_signals_the_even_barrier
both | cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [r1], [rd1, {r2, r4}], [r3], rd2; | test_coverage_copies::test_tensor_loads_of_every_rank
100 | cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes [r1], [rd1, {r2, r4, r5, r6, r7}], [r3]; | test_coverage_copies::test_gather_and_scatter_of_rows
both | cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [r1], [rd1, {r2, r4, r5}], [r3], {h1}; | !im2col maps are for convolutions
both | cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [rd1, {r2, r4}], [r1]; | test_isa_copies::test_reading_wait_frees_the_source
100 | cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [rd1, {r2, r4, r5, r6, r7}], [r1]; | test_coverage_copies::test_gather_and_scatter_of_rows
both | cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [rd1, {r2, r4}], [r1]; | test_isa_copies::test_tensor_reduction_adds
both | cp.reduce.async.bulk.tensor.2d.global.shared::cta.max.tile.bulk_group [rd1, {r2, r4}], [r1]; | test_coverage_copies::test_tensor_reductions
both | cp.async.bulk.prefetch.tensor.2d.L2.global.tile [rd1, {r2, r4}]; | test_coverage_copies::test_tensor_loads_of_every_rank
both | cp.async.bulk.commit_group; | test_isa_copies::test_bulk_copies_in_and_out
both | cp.async.bulk.wait_group 0; | test_isa_copies::test_bulk_copies_in_and_out
both | cp.async.bulk.wait_group.read 0; | test_isa_copies::test_reading_wait_frees_the_source
both | prefetch.tensormap [rd1]; | test_coverage_copies::test_gather_and_scatter_of_rows
both | createpolicy.fractional.L2::evict_first.b64 rd1, 0f3F800000; | test_coverage_copies::test_bulk_stores_with_a_byte_mask_and_reductions
both | tensormap.replace.tile.global_address.shared::cta.b1024.b64 [r2], rd2; | test_isa_tensormaps::test_a_map_made_in_shared_memory_loads_a_tile
both | tensormap.replace.tile.rank.shared::cta.b1024.b32 [r2], 1; | test_isa_tensormaps::test_maps_that_are_not_there
both | tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [r2], 0, r1; | test_isa_tensormaps::test_a_map_made_in_shared_memory_loads_a_tile
both | tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [r2], 1, r1; | test_isa_tensormaps::test_a_map_made_in_shared_memory_loads_a_tile
both | tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [r2], 0, rd2; | test_isa_tensormaps::test_a_map_made_in_shared_memory_loads_a_tile
both | tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [r2], 0, r1; | test_isa_tensormaps::test_a_map_made_in_shared_memory_loads_a_tile
both | tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [r2], 10; | test_isa_tensormaps::test_a_map_made_in_shared_memory_loads_a_tile
both | tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [r2], 0; | test_coverage_copies::test_every_field_of_a_tensor_map
both | tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [r2], 3; | test_coverage_copies::test_every_field_of_a_tensor_map
100 | tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [r2], 1; | test_coverage_copies::test_every_field_of_a_tensor_map
both | tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [r2], 1; | test_coverage_copies::test_every_field_of_a_tensor_map
both | tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [rd1], [r1], 128; | test_isa_tensormaps::test_a_map_made_in_shared_memory_loads_a_tile
""",
    "8 Clusters": r"""
both | mapa.shared::cluster.u32 r1, r2, r3; | test_isa_mbarrier::test_remote_arrival
both | mapa.u64 rd1, rd2, r3; | test_isa_collectives::test_generic_mapa_reaches_the_peer
both | getctarank.shared::cluster.u32 r1, r2; | test_isa_collectives::test_cluster_barrier_and_remote_shared_memory
both | ld.shared::cluster.b32 r1, [r2]; | test_isa_collectives::test_cluster_barrier_and_remote_shared_memory
both | st.shared::cluster.b32 [r2], r1; | test_coverage_copies::test_accesses_to_the_other_cta
both | atom.shared::cluster.add.u32 r1, [r2], r3; | test_coverage_copies::test_accesses_to_the_other_cta
both | st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [r1], r2, [r3]; | test_coverage_copies::test_stores_that_signal_the_other_cta
both | st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [r1], {r4, r5, r6, r7}, [r3]; | test_coverage_copies::test_stores_that_signal_the_other_cta
both | red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [r1], r2, [r3]; | test_isa_copies::test_asynchronous_stores_to_a_peer
both | barrier.cluster.arrive.release.aligned; | test_isa_collectives::test_cluster_barrier_and_remote_shared_memory
both | barrier.cluster.arrive.relaxed; | test_coverage_copies::test_accesses_to_the_other_cta
both | barrier.cluster.wait.acquire.aligned; | test_isa_collectives::test_cluster_barrier_and_remote_shared_memory
both | griddepcontrol.wait; | test_coverage_copies::test_what_has_no_effect_here
both | griddepcontrol.launch_dependents; | test_coverage_copies::test_what_has_no_effect_here
100 | clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [r1], [r2]; | test_scheduler_schedules::test_work_is_handed_out_by_cluster_launch_control
100 | clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [r1], [r2]; | test_coverage_copies::test_launch_control_for_a_cluster
100 | clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p1, q1; | test_coverage_copies::test_launch_control_for_a_cluster
100 | clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 r1, q1; | test_scheduler_schedules::test_work_is_handed_out_by_cluster_launch_control
100 | clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {r1, r2, r3, _}, q1; | test_coverage_copies::test_launch_control_for_a_cluster
""",
    "9 wgmma": r"""
90 | wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {r1, r2, r3, r4}, rd1, rd2, p1, 1, 1, 0, 1; | test_isa_mma::test_wgmma_registers_are_poison_until_the_wait
90 | wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {r1, r2, r3, r4}, {r5, r6, r7, r8}, rd2, p1, 1, 1, 0; | test_isa_mma::test_wgmma
90 | wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {r1, r2}, rd1, rd2, p1, 1, 1, 0, 0; | test_coverage_warp::test_products_of_a_warpgroup
90 | wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {r1, r2, r3, r4}, rd1, rd2, p1, 1, 1; | test_coverage_warp::test_products_of_a_warpgroup
90 | wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2 {r1, r2, r3, r4}, rd1, rd2, p1, 1, 1; | test_coverage_warp::test_products_of_a_warpgroup
90 | wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.u8 {r1, r2, r3, r4}, rd1, rd2, p1; | test_coverage_warp::test_products_of_a_warpgroup
90 | wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8.satfinite {r1, r2, r3, r4}, rd1, rd2, p1; | test_coverage_warp::test_products_of_a_warpgroup
90 | wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {r1, r2, r3, r4}, rd1, rd2, p1; | !single-bit products
90 | wgmma.fence.sync.aligned; | test_isa_mma::test_wgmma_registers_are_poison_until_the_wait
90 | wgmma.commit_group.sync.aligned; | test_isa_mma::test_wgmma_registers_are_poison_until_the_wait
90 | wgmma.wait_group.sync.aligned 0; | test_isa_mma::test_wgmma
""",
    "10 Matrices of one warp, cp.async": r"""
both | mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {r1, r2, r3, r4}, {r5, r6, r7, r8}, {r9, r10}, {r11, r12, r13, r14}; | test_coverage_warp::test_products_of_a_warp
both | mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {r1, r2}, {r5, r6, r7, r8}, {r9, r10}, {r11, r12}; | test_coverage_warp::test_products_of_a_warp
both | mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {r1, r2, r3, r4}, {r5, r6}, {r9}, {r11, r12, r13, r14}; | test_coverage_warp::test_products_of_a_warp
both | mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {r1, r2, r3, r4}, {r5, r6, r7, r8}, {r9, r10}, {r11, r12, r13, r14}; | test_coverage_warp::test_products_of_a_warp
both | mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {r1, r2, r3, r4}, {r5, r6, r7, r8}, {r9, r10}, {r11, r12, r13, r14}; | test_coverage_warp::test_products_of_a_warp
both | mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {r1, r2, r3, r4}, {r5, r6, r7, r8}, {r9, r10}, {r11, r12, r13, r14}; | test_coverage_warp::test_products_of_a_warp
both | ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {r1, r2, r3, r4}, [r5]; | test_coverage_warp::test_ldmatrix_of_halves
both | ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {r1, r2}, [r5]; | test_coverage_warp::test_ldmatrix_of_halves
100 | ldmatrix.sync.aligned.m16n16.x1.trans.shared::cta.b8 {r1, r2}, [r5]; | test_coverage_warp::test_ldmatrix_of_bytes
100 | ldmatrix.sync.aligned.m8n16.x1.shared::cta.b8x16.b4x16_p64 {r1}, [r5]; | test_coverage_warp::test_ldmatrix_that_unpacks
100 | ldmatrix.sync.aligned.m8n16.x1.shared::cta.b8x16.b6x16_p32 {r1}, [r5]; | test_coverage_warp::test_ldmatrix_that_unpacks
100 | ldmatrix.sync.aligned.m16n16.x1.trans.shared::cta.b8x16.b4x16_p64 {r1, r2}, [r5]; | test_coverage_warp::test_ldmatrix_that_unpacks
both | stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [r5], {r1, r2, r3, r4}; | test_coverage_warp::test_stmatrix
both | stmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 [r5], {r1, r2}; | test_coverage_warp::test_stmatrix
100 | stmatrix.sync.aligned.m16n8.x1.trans.shared::cta.b8 [r5], {r1}; | test_coverage_warp::test_stmatrix
both | movmatrix.sync.aligned.m8n8.trans.b16 r1, r2; | test_isa_mma::test_movmatrix_transposes
both | cp.async.ca.shared::cta.global [r1], [rd1], 4, r2; | test_isa_copies::test_cp_async_groups
both | cp.async.cg.shared::cta.global [r1], [rd1], 16, r2; | test_coverage_warp::test_cp_async_with_a_policy_and_a_short_source
both | cp.async.cg.shared::cta.global.L2::cache_hint [r1], [rd1], 16, rd2; | test_coverage_warp::test_cp_async_with_a_policy_and_a_short_source
both | cp.async.commit_group; | test_coverage_warp::test_cp_async_with_a_policy_and_a_short_source
both | cp.async.wait_group 1; | test_coverage_warp::test_cp_async_with_a_policy_and_a_short_source
both | cp.async.wait_all; | test_isa_copies::test_cp_async_groups
""",
    "11 Other instructions": r"""
both | setmaxnreg.dec.sync.aligned.u32 40; | test_isa_mma::test_fragments_gather_a_parted_warp_without_repeating_what_came_before
both | setmaxnreg.inc.sync.aligned.u32 232; | test_coverage_copies::test_what_has_no_effect_here
both | elect.sync r1|p1, r2; | test_isa_collectives::test_elect_takes_the_lowest_lane
both | bar.sync 1, 64; | test_isa_collectives::test_barrier_counts_must_agree
both | bar.arrive 1, 64; | test_isa_collectives::test_arrivals_alone_complete_a_named_barrier
both | bar.red.popc.u32 r1, 1, p1; | test_isa_collectives::test_barrier_reductions
both | bar.red.and.pred p1, 1, p2; | test_isa_collectives::test_barrier_reductions
both | barrier.cta.sync 1, 64; | test_coverage_warp::test_named_barriers_and_collectives_in_other_spellings
both | barrier.cta.arrive.aligned 1, 64; | test_coverage_warp::test_named_barriers_and_collectives_in_other_spellings
both | bar.warp.sync r1; | test_isa_copies::test_cp_async_arrives_on_an_mbarrier
both | redux.sync.add.s32 r1, r2, r3; | test_isa_collectives::test_collective_gathers_lanes_that_have_no_common_meeting_place
both | redux.sync.xor.b32 r1, r2, r3; | test_isa_collectives::test_redux
100 | redux.sync.max.abs.NaN.f32 r1, r2, r3; | test_coverage_warp::test_named_barriers_and_collectives_in_other_spellings
both | shfl.sync.bfly.b32 r1|p1, r2, 1, 31, r3; | test_isa_collectives::test_shfl
both | vote.sync.any.pred p1, p2, r1; | test_isa_collectives::test_votes
both | vote.sync.ballot.b32 r1, p2, r2; | test_isa_collectives::test_collective_in_a_branch_uses_its_lanes
both | match.any.sync.b32 r1, r2, r3; | test_isa_collectives::test_match
both | match.all.sync.b64 r1|p1, rd1, r3; | test_coverage_warp::test_named_barriers_and_collectives_in_other_spellings
both | activemask.b32 r1; | test_isa_collectives::test_votes
both | ex2.approx.f32 r1, r2; | test_isa_floating::test_functions_are_within_one_unit
both | ex2.approx.ftz.f32 r1, r2; | test_isa_floating::test_function_limits
both | ex2.approx.f16 h1, h2; | test_isa_floating::test_half_exponential
both | ex2.approx.f16x2 r1, r2; | test_coverage_scalar::test_functions_of_packed_halves
both | ex2.approx.ftz.bf16 h1, h2; | test_coverage_scalar::test_functions_of_halves
both | ex2.approx.ftz.bf16x2 r1, r2; | test_coverage_scalar::test_functions_of_packed_halves
both | lg2.approx.ftz.f32 r1, r2; | test_isa_floating::test_function_limits
both | rcp.approx.ftz.f32 r1, r2; | test_isa_floating::test_function_limits
both | rcp.rn.f32 r1, r2; | test_isa_floating::test_functions_are_within_one_unit
both | rcp.approx.ftz.f64 rd1, rd2; | test_coverage_scalar::test_reciprocal_of_doubles
both | sqrt.approx.f32 r1, r2; | test_isa_floating::test_functions_are_within_one_unit
both | rsqrt.approx.f32 r1, r2; | test_isa_floating::test_functions_are_within_one_unit
both | tanh.approx.f32 r1, r2; | test_isa_floating::test_functions_are_within_one_unit
both | tanh.approx.f16x2 r1, r2; | test_coverage_scalar::test_functions_of_packed_halves
both | sin.approx.f32 r1, r2; | test_isa_floating::test_functions_are_within_one_unit
both | max.NaN.f32 r1, r2, r3; | test_isa_floating::test_minimum_and_maximum
both | min.xorsign.abs.f32 r1, r2, r3; | test_isa_floating::test_minimum_and_maximum
100 | max.f32 r1, r2, r3, r4; | test_coverage_scalar::test_three_operands
100 | min.NaN.abs.f32 r1, r2, r3, r4; | test_coverage_scalar::test_three_operands
both | fma.rn.ftz.f32 r1, r2, r3, r4; | test_coverage_scalar::test_flushed_and_clamped_fma
both | fma.rn.relu.bf16x2 r1, r2, r3, r4; | test_coverage_scalar::test_flushed_and_clamped_fma
100 | fma.rn.f32x2 rd1, rd2, rd3, rd4; | test_isa_floating::test_packed_f32x2_equals_two_scalars
100 | add.rn.ftz.f32x2 rd1, rd2, rd3; | test_coverage_scalar::test_packed_pairs_flush_and_round
100 | sub.rz.f32x2 rd1, rd2, rd3; | test_coverage_scalar::test_packed_pairs_flush_and_round
100 | mul.rn.f32x2 rd1, rd2, rd3; | test_isa_floating::test_packed_f32x2_equals_two_scalars
100 | add.rn.f32.bf16 r1, h1, r2; | test_isa_floating::test_mixed_precision_accumulation
100 | sub.rn.f32.f16 r1, h1, r2; | test_coverage_scalar::test_mixed_precision
100 | fma.rn.f32.f16 r1, h1, h2, r2; | test_coverage_scalar::test_mixed_precision
both | cvt.rn.bf16x2.f32 r1, r2, r3; | test_isa_convert::test_packs_two_floats
both | cvt.rz.relu.f16x2.f32 r1, r2, r3; | test_coverage_scalar::test_halves_with_relu_and_bytes_with_relu
100 | cvt.rs.f16x2.f32 r1, r2, r3, r4; | test_coverage_scalar::test_stochastic_rounding
100 | cvt.rs.satfinite.bf16x2.f32 r1, r2, r3, r4; | test_coverage_scalar::test_stochastic_rounding_at_the_ends
both | cvt.rna.tf32.f32 r1, r2; | test_isa_convert::test_tf32
both | cvt.rn.satfinite.e4m3x2.f32 h1, r2, r3; | test_isa_convert::test_eight_bit_floats
both | cvt.rn.satfinite.relu.e5m2x2.f32 h1, r2, r3; | test_coverage_scalar::test_halves_with_relu_and_bytes_with_relu
both | cvt.rn.satfinite.e4m3x2.f16x2 h1, r2; | test_coverage_scalar::test_halves_to_bytes_and_back
both | cvt.rn.f16x2.e4m3x2 r1, h1; | test_isa_convert::test_eight_bit_floats
100 | cvt.rn.satfinite.e4m3x2.bf16x2 h1, r2; | test_coverage_scalar::test_halves_to_bytes_and_back
100 | cvt.rn.bf16x2.e4m3x2 r1, h1; | test_coverage_scalar::test_halves_to_bytes_and_back
100 | cvt.rn.satfinite.e2m3x2.f32 h1, r2, r3; | test_isa_convert::test_tiny_floats_take_the_nearest
100 | cvt.rn.satfinite.e2m1x2.f32 b1, r2, r3; | test_isa_convert::test_tiny_floats_take_the_nearest
100 | cvt.rn.f16x2.e2m1x2 r1, b1; | test_coverage_scalar::test_six_and_four_bits_to_halves
100 | cvt.rn.f16x2.e3m2x2 r1, h1; | test_coverage_scalar::test_six_and_four_bits_to_halves
100 | cvt.rz.satfinite.ue8m0x2.f32 h1, r2, r3; | test_coverage_scalar::test_scales
100 | cvt.rp.satfinite.ue8m0x2.bf16x2 h1, r2; | test_coverage_scalar::test_scales
100 | cvt.rn.bf16x2.ue8m0x2 r1, h1; | test_coverage_scalar::test_scales
100 | cvt.rs.satfinite.e4m3x4.f32 r1, {r2, r3, r4, r5}, r6; | test_coverage_scalar::test_stochastic_rounding
100 | cvt.rs.relu.satfinite.e5m2x4.f32 r1, {r2, r3, r4, r5}, r6; | test_coverage_scalar::test_stochastic_rounding_at_the_ends
100 | cvt.rs.satfinite.e2m3x4.f32 r1, {r2, r3, r4, r5}, r6; | test_coverage_scalar::test_stochastic_rounding
100 | cvt.rs.satfinite.e3m2x4.f32 r1, {r2, r3, r4, r5}, r6; | test_coverage_scalar::test_stochastic_rounding
100 | cvt.rs.satfinite.e2m1x4.f32 h1, {r2, r3, r4, r5}, r6; | test_coverage_scalar::test_stochastic_rounding
both | prmt.b32 r1, r2, r3, r4; | test_isa_logic::test_prmt_with_a_constant
both | lop3.b32 r1, r2, r3, r4, 0x96; | test_isa_logic::test_lop3
both | lop3.or.b32 r1|p1, r2, r3, r4, 0x96, p2; | test_coverage_scalar::test_lop3_with_a_predicate
both | nanosleep.u32 100; | test_coverage_copies::test_what_has_no_effect_here
both | ld.global.nc.L1::no_allocate.v4.b32 {r1, r2, r3, r4}, [rd1]; | test_coverage_scalar::test_loads_and_stores_with_hints
both | ld.global.L2::128B.b32 r1, [rd1]; | test_coverage_scalar::test_loads_and_stores_with_hints
both | ld.global.L2::cache_hint.b32 r1, [rd1], rd2; | test_coverage_scalar::test_loads_and_stores_with_hints
100 | ld.global.L1::no_allocate.v8.f32 {r1, r2, r3, r4, r5, r6, r7, r8}, [rd1]; | test_coverage_scalar::test_loads_and_stores_with_hints
100 | ld.global.nc.v4.b64 {rd2, rd3, rd4, rd5}, [rd1]; | test_coverage_scalar::test_loads_and_stores_with_hints
100 | st.global.v8.b32 [rd1], {r1, r2, r3, r4, r5, r6, r7, r8}; | test_coverage_scalar::test_loads_and_stores_with_hints
100 | st.global.L1::no_allocate.L2::evict_last.v4.b64 [rd1], {rd2, rd3, rd4, rd5}; | test_coverage_scalar::test_loads_and_stores_with_hints
both | ld.acquire.gpu.global.b32 r1, [rd1]; | test_coverage_scalar::test_loads_and_stores_with_hints
both | st.release.sys.global.b32 [rd1], r1; | test_coverage_scalar::test_loads_and_stores_with_hints
100 | st.bulk.weak.shared::cta [rd1], 64, 0; | test_isa_memory::test_st_bulk_fills_zeros
both | atom.global.add.u32 r1, [rd1], r2; | test_isa_memory::test_atomics_return_the_old_value
both | atom.acq_rel.gpu.global.cas.b64 rd2, [rd1], rd3, rd4; | test_coverage_scalar::test_wide_and_vector_atomics
both | atom.global.cas.b128 q1, [rd1], q2, q3; | test_coverage_scalar::test_wide_and_vector_atomics
both | atom.global.exch.b128 q1, [rd1], q2; | test_coverage_scalar::test_wide_and_vector_atomics
both | atom.global.add.noftz.bf16x2 r1, [rd1], r2; | test_coverage_scalar::test_wide_and_vector_atomics
both | atom.global.v4.f32.add {r1, r2, r3, r4}, [rd1], {r5, r6, r7, r8}; | test_coverage_scalar::test_wide_and_vector_atomics
both | atom.shared.add.f32 r1, [r2], r3; | test_coverage_scalar::test_wide_and_vector_atomics
both | red.global.add.v4.f32 [rd1], {r1, r2, r3, r4}; | test_coverage_scalar::test_wide_and_vector_atomics
both | red.global.add.f64 [rd1], rd2; | test_coverage_scalar::test_wide_and_vector_atomics
both | multimem.ld_reduce.weak.global.add.f32 r1, [rd1]; | !multicast objects span several devices
both | multimem.st.weak.global.f32 [rd1], r1; | !multicast objects span several devices
both | multimem.red.relaxed.gpu.global.add.f32 [rd1], r1; | !multicast objects span several devices
both | discard.global.L2 [rd1], 128; | test_coverage_copies::test_what_has_no_effect_here
both | applypriority.global.L2::evict_normal [rd1], 128; | test_coverage_copies::test_what_has_no_effect_here
both | prefetch.global.L2 [rd1]; | test_coverage_copies::test_what_has_no_effect_here
both | fence.acq_rel.gpu; | test_coverage_copies::test_what_has_no_effect_here
both | fence.sc.cluster; | test_coverage_copies::test_what_has_no_effect_here
both | fence.mbarrier_init.release.cluster; | test_isa_copies::test_faults_of_loads_name_the_instruction
both | fence.proxy.async; | test_coverage_copies::test_what_has_no_effect_here
both | fence.proxy.async.shared::cta; | test_isa_copies::test_bulk_reduction
both | fence.proxy.async.global; | test_coverage_copies::test_what_has_no_effect_here
both | fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster; | test_coverage_copies::test_what_has_no_effect_here
both | fence.acquire.sync_restrict::shared::cluster.cluster; | test_coverage_copies::test_what_has_no_effect_here
both | fence.proxy.tensormap::generic.release.gpu; | test_coverage_copies::test_what_has_no_effect_here
both | fence.proxy.tensormap::generic.acquire.gpu [rd1], 128; | test_coverage_copies::test_what_has_no_effect_here
both | fence.proxy.alias; | test_coverage_copies::test_what_has_no_effect_here
""",
}
