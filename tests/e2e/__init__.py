"""The driver on a real Kubernetes: what only an API server, a scheduler, a kubelet and a runtime can prove.

Field cases (their table is in ``tests/cases``) that are proved here too, each by its number, with the module, less its
``test_``, and some words of the tests' names; a module alone means all of it.

     1  strategy whose gate is off            time_slicing: which_gate_is_off
     7  no requests means all                 two_drivers: what_both_drivers_have (each config is for all requests)
     8  claim of two drivers                  two_drivers
    10  class and claim configure             time_slicing: slice_of_its_class
    13  card without time slices              refusals: without_time_slices
    16  device in two live claims             refusals: given_to_two_claims; deletions: force_deleted, forced_deletion
    18  half-done prepares                    refusals: pile_nothing_up
    20  unprepare without the claim           deletions: torn_out; restarts: without_the_api_server
    22  one of two drivers fails              two_drivers: other_driver
    24  damaged state                         restarts: damaged_state
    26  reboot                                restarts: rebooted
    28  restart under running pods            restarts: run_on, just_starting; chart: upgrade, killed
    32  cards keep their names                gpus_come_and_go: drops_out
    34  cards that come late, or never        gpus_come_and_go; slices: come_late
    36  stop, update, end                     slices: rewrites_no_slice, slices_stay; several_nodes: stays_away
    38  attributes that users select on       selection: every_published_fact
    52  rights and admission of MPS          mps: missing_right, not_admitted, need_not_be_seen
    58  template or shared claim              sharing: name_one_claim, pods_of_a_template, by_its_claims_name
    61  first sharer to leave                 time_slicing: last_one_resets_it, monitor
    64  from a pod's device to its UUID       metrics: exporter
    67  own metrics                           metrics; chart: scraper
    68  GPU half not enabled                  chart: confirmation
    75  no node for claim-only pods           karpenter_core (guide: docs/karpenter.md)
    76  static NodePool makes nothing         karpenter_core; node_manifests: sets_the_gate
    79  built-in publisher fights             node_manifests (and tests/unit/manifests/test_nodes)
    81  two containers, one card              sharing: sidecar
    83  named configs and node labels         migrate (and tests/unit/migrate)
    85  both publishers on one node           device_plugin
    90  admin access changes nothing          selection: admin; time_slicing: monitor
    92  admission webhook                     webhook

Of the cases on prepare, restart, slices, metrics and time slices these are not here: 29, where the driver reads a file;
93, a guide.
"""
