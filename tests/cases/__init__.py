"""Field cases as tests: what went wrong for people who share GPUs, each with its input and what is right.

The driver runs here as it does on a node (``driver.py``), and the case is told over its sockets. The table has a line
a case: its number, what it is about, and where it is shown; a name alone is a test module of this package. What is
shown elsewhere is not repeated here.

     1  strategy whose gate is off            test_config_parsing; demo/test_demo, scene d
     3  typo in a config                      test_config_parsing; unit/api/test_config_errors
     5  replicas in a config                  test_config_parsing; unit/commands/test_validate
     7  no requests means all                 test_config_parsing; unit/claims/test_allocation (absent, empty, null)
     8  claim of two drivers                  test_config_parsing
    10  class and claim configure             test_config_parsing; unit/claims/test_configs (every order)
    13  card without time slices              test_prepare; unit/devices/test_gpu_control (exit codes)
    16  device in two live claims             test_prepare; unit/claims/test_lifecycle (both with admin access, races)
    18  half-done prepares                    test_prepare; unit/claims/test_recovery (sweep)
    20  unprepare without the claim           test_prepare
    22  each claim its own answer             test_prepare; grpc/test_dra_server
    24  damaged state                         test_restart; unit/claims/test_store
    26  reboot                                test_restart; unit/claims/test_recovery
    28  restart under running pods            test_restart; demo/test_node and scene e of the demo (SIGKILL)
    29  state of another shape                test_restart
    32  names and cards that move             test_slices; unit/devices/test_discovery (while running)
    34  cards that come late, or never        test_slices; unit/devices/test_discovery (waits); demo/test_gpus
    36  stop, update, end                     test_slices; unit/slices/test_publisher; grpc/test_plugin (sockets)
    38  attributes that users select on       test_slices; unit/slices/test_build (the whole list, capacity too)
    41  device nodes that are missing         test_cdi_files; unit/cdi/test_device_nodes; unit/cdi/test_driver_replaced
    44  another CDI directory                 test_cdi_files; unit/cdi/test_directory
    46  one card, two admin requests          test_cdi_files
    47  driver not under /                    test_cdi_files; unit/cdi/test_layout (eight kinds of hosts)
    49  MIG devices of an admin               test_slices; only read, never made or removed
    51  MIG layout that changes               test_slices; unit/claims/test_lifecycle (card held meanwhile)
    52  missing rights for MPS                e2e/test_mps; unit/test_chart_rights; unit/mps/test_deployment
    54  MPS without a shell                   test_mps; unit/mps/test_tool
    56  MPS together with shares              test_mps; unit/claims/test_mps
    57  MPS limits that nobody asked for      test_mps; unit/claims/test_mps
    58  template or shared claim              test_time_slice; demo/test_demo, scenes a, c; unit/simulator/test_examples
    61  first sharer to leave                 test_time_slice
    64  from a claim's device to its UUID     test_slices
    67  own metrics                           test_metrics; unit/observe/test_metrics (fixed set of kinds)
    70  kubelet's directory elsewhere         test_deploy; grpc/test_plugin; unit/test_settings
    72  gates that do not go together         test_deploy; unit/test_features; unit/test_settings
    81  two containers, one card              demo/test_node; demo/test_demo, scene b
    85  both publishers on one node           test_deploy; unit/slices/test_other_publisher; e2e/test_device_plugin
    88  pods can go without NVIDIA driver     test_prepare; the check before a removal waits
    90  admin access changes nothing          test_security

Elsewhere: 59 (shares) in test_shares, e2e/test_shares; 68 in e2e/test_chart; 75, 76, 79 in e2e/test_node_manifests and
test_karpenter_core; 83 in unit/migrate; 92 (webhook) in unit/webhook and e2e/test_webhook.
Waiting, for what is not built yet: 49 with DynamicMIG on. 36, 64 and 93 are guides.
"""
