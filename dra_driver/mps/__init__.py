"""MPS control daemons of this node: folders, supervisor, launchers, and the facade that joins them.

``daemons`` implements ports.MpsDaemons. It makes a daemon's folder (``folders``, ``mounts``, ``description``) and has
a launcher run ``dra-driver mps-daemon`` on it: ``process`` as a child of the driver, ``deployment`` in a pod. That
command is ``supervisor``: it starts NVIDIA's daemon, makes its settings and says when it serves; ``tool`` talks to it.
"""
