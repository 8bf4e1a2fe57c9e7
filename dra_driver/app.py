"""The composition root of the node daemon: which parts there are, how they are joined, in what order they start.

Settings and feature gates are turned into parts here and nowhere else. Start: state and recovery, the kubelet's
sockets (so that claims can be unprepared while the NVIDIA driver is down), then the inventory; the first sight of a GPU
finishes recovery and publishes the slices.
"""

import ctypes
import gc
import logging
import threading
from typing import TYPE_CHECKING

import dra_driver
from dra_driver.cdi.claim_specs import ClaimSpecs
from dra_driver.cdi.directory import CdiDirectory
from dra_driver.claims.daemon_watch import DaemonWatch
from dra_driver.claims.daemons import ClaimDaemons
from dra_driver.claims.gpu_steps import GpuSteps
from dra_driver.claims.health import device_health
from dra_driver.claims.held_files import HeldFiles
from dra_driver.claims.instance import Instance
from dra_driver.claims.lifecycle import ClaimLifecycle, Edges
from dra_driver.claims.live import LiveRecords
from dra_driver.claims.locks import ClaimLocks, ProcessTurn
from dra_driver.claims.orphans import Orphans
from dra_driver.claims.recovery import Rebuild, check_boot, open_store
from dra_driver.claims.store import STATE_FILE
from dra_driver.claims.sweep import Sweep
from dra_driver.cluster.claims import ApiClaims, ApiClasses
from dra_driver.cluster.connection import connect
from dra_driver.cluster.events import ApiEvents
from dra_driver.cluster.nodes import ApiNode
from dra_driver.cluster.slices import ApiSlices
from dra_driver.devices.discovery import Discovery
from dra_driver.features import CONSUMABLE_SHARES, MPS_SUPPORT, TIME_SLICING_SETTINGS, Gates
from dra_driver.hardware import Hardware
from dra_driver.kubelet.device_health import DeviceHealthService
from dra_driver.kubelet.other_driver import OtherDriver
from dra_driver.kubelet.plugin import KubeletPlugin, Sockets
from dra_driver.kubelet.server import Services
from dra_driver.model.devices import Inventory
from dra_driver.model.errors import DriverNotReady, StateError
from dra_driver.model.health import DeviceHealth
from dra_driver.mps_daemons import NodeMpsDaemons
from dra_driver.observe import logs
from dra_driver.observe.http import StatusServer
from dra_driver.observe.memory_watch import MemoryWatch, Sources
from dra_driver.observe.metrics import PrometheusRecorder
from dra_driver.observe.readiness import Conditions, Liveness
from dra_driver.settings import DevicePluginConflict, GpuControlMode, LoggingFormat, Settings
from dra_driver.shared_devices import KnownShares, LastingProfile
from dra_driver.sharing.memory_limits import LimitTerms
from dra_driver.sharing.mps import MpsStrategy
from dra_driver.sharing.profile import Terms
from dra_driver.sharing.strategy import Strategies, Strategy
from dra_driver.sharing.time_slicing import TimeSlicingStrategy
from dra_driver.signals import stop_on_signals
from dra_driver.slices.offering import Offering, Telling
from dra_driver.slices.other_publisher import OtherPublisher
from dra_driver.slices.profiles import Profiles
from dra_driver.slices.publisher import Role, SlicePublisher

if TYPE_CHECKING:
    from dra_driver.kubelet.healthcheck import HealthServer

log = logging.getLogger(__name__)

_GRACE_SECONDS = 10.0
_FIRST_SIGHT_SECONDS = 5.0
_SETTLE_SECONDS = 0.3
_ARENAS = 2


def run(settings: Settings) -> int:
    """Run the driver until a signal ends it; the exit code. Raises DriverError when it cannot start or go on."""
    logs.configure(settings.verbosity, settings.logging_format is LoggingFormat.JSON)
    _limit_arenas()
    stop = stop_on_signals()
    app = App(settings)
    try:
        app.start()
        if not stop.wait(_SETTLE_SECONDS):
            _trim()
        while not stop.wait(1.0):  # the kernel may hand the signal to another thread, which ends no wait of this one
            app.check_state()
            app.check_driver()
    finally:
        app.stop()
    return 0


def _limit_arenas() -> None:
    """Fewer malloc arenas: each gRPC thread would get one of its own, megabytes that a node daemon should not cost."""
    m_arena_max = -8
    try:
        ctypes.CDLL(None).mallopt(m_arena_max, _ARENAS)
    except (OSError, AttributeError):
        log.debug("no mallopt here; memory may be a little higher")


def _trim() -> None:
    """Give back what starting up took and left behind, and have the collector leave alone what stays for good."""
    gc.collect()
    gc.freeze()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        log.debug("no malloc_trim here; memory may be a little higher")


def strategies(gates: Gates) -> Strategies:
    """The sharing strategies that the feature gates switch on."""
    switched_on: dict[str, Strategy] = {}
    if TIME_SLICING_SETTINGS in gates:
        switched_on["TimeSlicing"] = TimeSlicingStrategy()
    if MPS_SUPPORT in gates:
        switched_on["MPS"] = MpsStrategy()
    return switched_on


class App:
    """All parts of one driver process. Building opens what must not be missing; ``start`` starts the threads."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingError, StateError or another DriverError for what only a person can mend."""
        self._settings = settings
        self._profile = LastingProfile(settings)
        node = settings.node_name
        self.conditions = Conditions(("devices", "registration", "slices"))
        self._liveness = Liveness()
        self._recorder = PrometheusRecorder(node)
        self._instance = Instance(settings.state_directory, shared=bool(settings.pod_uid))
        self._connection = connect(
            str(settings.kubeconfig) if settings.kubeconfig else None,
            f"dra-driver/{dra_driver.__version__}",
            qps=settings.kube_api_qps,
            burst=settings.kube_api_burst,
        )
        self._events = ApiEvents(self._connection, node)
        # Apart, so that pods that use too much memory do not use up the pace of events about the node.
        self._pod_events = ApiEvents(self._connection, node)
        self._known_shares = KnownShares(Telling(self.conditions, self._events))
        self._claims_api = ApiClaims(self._connection)
        self._hardware = Hardware(settings)
        self._strategies = strategies(settings.gates)
        self._inventory: Inventory | None = None
        self._absent = False
        self._recovered = False
        self._decided = threading.Event()
        self._cdi = ClaimSpecs(CdiDirectory(settings.cdi_root), self._hardware.files, self._driver_version)
        self._store = open_store(settings.state_directory / STATE_FILE, self._events)
        self._turn = ProcessTurn(settings.state_directory / "turn.lock")
        self._damage = ""
        self._held = HeldFiles((*self._instance.files, *self._store.files, *self._turn.files))
        self._memory_watch = self._make_memory_watch()
        self._node = ApiNode(self._connection, node)
        self._mps = NodeMpsDaemons(settings, self._hardware.roots_now, self._connection, self._node)
        edges = self._edges()
        locks = ClaimLocks(self._turn)
        self._lifecycle = ClaimLifecycle(edges, self._strategies, node, locks, settings.max_clients_per_gpu)
        orphans = Orphans(edges, locks)
        self._daemon_watch = DaemonWatch(LiveRecords(self._store), edges.daemons, orphans, self._events)
        self._rebuild = Rebuild(edges, node, self._strategies, orphans.adopt, orphans.discard)
        self._sweep = Sweep(edges, node, self._lifecycle.unprepare, self._rebuild.run)
        sockets = Sockets.of(settings.kubelet_registrar_directory, settings.plugin_directory, settings.pod_uid or None)
        refuse = settings.device_plugin_conflict is DevicePluginConflict.REFUSE
        self._other_driver = OtherDriver(
            sockets, self.conditions, self._events, refuse=refuse, sole=self._instance.may_publish
        )
        self._publisher = SlicePublisher(
            ApiSlices(self._connection, node),
            self._node,
            node,
            self._events,
            self.conditions,
            role=self._role,
        )
        self._device_plugin = OtherPublisher(self._node.allocatable, self.conditions, self._events, refuse=refuse)
        self._profiles = self._make_profiles()
        self._offering = Offering(
            node,
            self._profiles,
            LiveRecords(self._store),
            self._publisher.publish,
            lambda: self._publisher.shares_dropped,
            self._known_shares,
            self._refused,
        )
        shared = CONSUMABLE_SHARES in settings.gates
        source = self._hardware.limited(self._cdi.why_no_memory_limits) if shared else self._hardware.source
        self._discovery = Discovery(
            source, self.conditions, self._seen, events=self._events, on_look=self._offering.refresh
        )
        self._device_health = DeviceHealthService(self._health_of_devices)
        self._plugin = KubeletPlugin(
            sockets,
            Services(self._lifecycle, self._device_health),
            self._recorder,
            self.conditions,
            stand_aside=self._other_driver.in_the_way,
        )
        self._status = self._status_server()
        self._health = self._health_server()

    def _edges(self) -> Edges:
        observing = self._settings.gpu_control is GpuControlMode.OBSERVE
        return Edges(
            api=self._claims_api,
            cdi=self._cdi,
            store=self._store,
            steps=GpuSteps(self._hardware.control, self._store, observing),
            daemons=ClaimDaemons(self._mps),
            events=self._events,
            inventory=self._current,
            classes=ApiClasses(self._connection),
            limit_terms=LimitTerms(self._settings.share_memory, self._known_shares.count),
            watch_memory=self._memory_watch.wake,
        )

    def _make_memory_watch(self) -> MemoryWatch:
        sources = Sources(
            records=self._store.records,
            memory=self._hardware.memory,
            pods=self._hardware.pods,
            claims=self._claims_api,
        )
        return MemoryWatch(sources, self._pod_events, self._recorder.memory_budget_exceeded)

    def _role(self) -> Role:
        if self._other_driver.in_the_way():
            return Role.STANDS_ASIDE
        return Role.WRITES if self._instance.may_publish() else Role.STANDS_BY

    def _refused(self) -> bool:
        """Whether another offers this node's GPUs."""
        return self._other_driver.in_the_way() or self._device_plugin.in_the_way()

    def _make_profiles(self) -> Profiles:
        terms = Terms(default=self._settings.consumable_shares, max_clients=self._settings.max_clients_per_gpu)
        self._profile.keep_in(self._store)
        return Profiles(terms, self._profile.read, self._node.labels)

    def _health_server(self) -> "HealthServer | None":
        if self._settings.healthcheck_port < 0:
            return None
        from dra_driver.kubelet.healthcheck import HealthServer  # two megabytes that are wanted only when it is on

        return HealthServer(
            self._settings.healthcheck_port,
            self._plugin.registration_socket,
            self._plugin.dra_socket,
            aside=lambda: self._other_driver.aside,
        )

    def _status_server(self) -> StatusServer | None:
        endpoint = self._settings.http_endpoint
        if endpoint is None:
            return None
        self._recorder.before_scrape(lambda: self._recorder.prepared_devices(self._store.counts()))
        return StatusServer(endpoint, self._settings.metrics_path, self._recorder, self.conditions, self._liveness)

    def start(self) -> None:
        """Start serving. Raises DriverError when a socket or port cannot be had."""
        for gate in self._settings.gates.not_implemented:
            log.warning("feature gate %s is known, but does nothing in this version", gate)
        check_boot(self._store, self._cdi, self._hardware.boot_id)
        self._publisher.start()
        self._discovery.start()
        self._plugin.start()
        if self._status:
            self._status.start()
        if self._health:
            self._health.start()
        self._sweep.start()
        self._memory_watch.start()
        self._daemon_watch.start()
        watched = (self._plugin, self._publisher, self._discovery, self._memory_watch, self._daemon_watch)
        self._liveness.watch(*(thread for part in watched for thread in part.threads))
        log.info("dra-driver %s serves node %s", dra_driver.__version__, self._settings.node_name)

    def check_state(self) -> None:
        """Look at the state's files. Raises StateError when they were taken away, so that this process must end.

        Its locks keep nobody out then, and nobody would find its records. A process that starts anew has both again
        after ``stop`` has put the records back; to change files and locks under calls in flight would be no less of an
        interruption.
        """
        lost = self._held.lost()
        damage = self._store.damage
        if lost:
            damage = (
                f"{lost} was removed or replaced while this driver has it open: it ends, to be started again with its "
                f"state in place; keep others from {lost.parent}"
            )
        if damage and self._damage != damage:
            self._damage = damage
            self.conditions.set("state", False, damage)
            self._events.warning("StateLost" if lost else "StateDatabaseDamaged", damage)
        if lost:
            raise StateError(damage)

    def check_driver(self) -> None:
        """Raises DriverNotReady when the NVIDIA driver was replaced and only a new process can ask the new one."""
        if why := self._hardware.outlived():
            raise DriverNotReady(why)

    def stop(self) -> None:
        """Stop in the opposite order; slices and prepared claims stay. Idempotent."""
        if self._health:
            self._health.stop()
        self._memory_watch.stop()
        self._daemon_watch.stop()
        self._sweep.stop()
        self._mps.close()
        self._plugin.stop(_GRACE_SECONDS)
        self._discovery.stop()
        self._publisher.stop()
        if self._status:
            self._status.stop()
        self._put_back_state()
        self._hardware.source.close()
        self._events.close()
        self._pod_events.close()
        self._connection.close()
        if self._turn.in_use:
            # Its thread is waited for at the end of the process; until then it needs all this, and others must wait.
            log.warning("a call is still in flight: the process ends with it")
            return
        self._store.close()
        self._turn.close()
        self._instance.close()

    def _current(self) -> Inventory:
        """The inventory; soon after the start it is worth a moment's wait. Raises DriverNotReady."""
        if not self._decided.is_set():
            self._decided.wait(_FIRST_SIGHT_SECONDS)
        why = self._discovery.complaint or "NVML is not ready, see the driver's log"
        if self._inventory is None:
            raise DriverNotReady(f"the GPUs of this node are not known yet: {why}")
        if self._absent:
            raise DriverNotReady(f"the GPUs of this node cannot be used now: {why}")
        return self._inventory

    def _put_back_state(self) -> None:
        try:
            if self._store.put_back():
                log.warning("%s was removed: written again for the next start", self._settings.state_directory)
        except StateError as error:
            log.error("%s", error)

    def _driver_version(self) -> str:
        return self._current().driver.driver_version

    def _seen(self, inventory: Inventory | None) -> None:
        """The inventory for the first time, or changed; None when there is no NVIDIA driver to ask for one."""
        self._absent = inventory is None
        if inventory is not None:
            if inventory.gpus and not self._recovered:
                # A claim that is taken over may have an even part of memory.
                self._known_shares.learn(self._profiles.decide(list(inventory.devices.values())).sharing)
                self._rebuild.run(inventory.devices)
                self._recall(inventory)
                self._recovered = True
                self._daemon_watch.begin()
            elif self._inventory is not None and (reset := _came_back(self._inventory, inventory)):
                self._store.forget_time_slices(reset)
            self._inventory = inventory
        self._decided.set()
        self._device_health.changed()
        self._offering.show(inventory)
        if inventory is not None and inventory.gpus:
            # Programs of NVIDIA's toolkit may take a second, or hang for a while.
            threading.Thread(target=self._cdi.look_ahead, name="driver-files", daemon=True).start()

    def _health_of_devices(self) -> tuple[DeviceHealth, ...] | None:
        """For the kubelet; None until it is known whether there are GPUs. Raises StateError."""
        if not self._decided.is_set():
            return None
        inventory = None if self._absent else self._inventory
        # The last inventory is kept when NVML fails, and then nobody knows how the cards are.
        doubt = self._discovery.complaint or ""
        return device_health(self._settings.node_name, inventory, self._store.records(), doubt)

    def _recall(self, inventory: Inventory) -> None:
        """Hold the first inventory against what is remembered; a full disk must not keep the node from serving."""
        devices = inventory.devices
        try:
            # Without persistence mode a card forgets its settings when nobody has it open.
            self._store.forget_time_slices(gpu.uuid for gpu in inventory.gpus if not gpu.persistence)
            # Later changes are discovery's to tell.
            moved = self._store.swap_names({name: device.uuid for name, device in devices.items()})
        except StateError as error:
            log.warning("what is remembered of the GPUs cannot be brought up to date: %s", error)
            return
        for name, uuid in moved.items():
            message = f"device {name} was {uuid} and is {devices[name].uuid} now: the driver numbers its GPUs anew"
            log.warning("%s", message)
            self._events.warning("DeviceNameMoved", message)


def _came_back(before: Inventory, now: Inventory) -> list[str]:
    """UUIDs of cards that may have been reset since: they were away, or their MIG mode was changed."""
    known = {(gpu.uuid, gpu.mig_enabled) for gpu in before.gpus}
    return [gpu.uuid for gpu in now.gpus if (gpu.uuid, gpu.mig_enabled) not in known]
