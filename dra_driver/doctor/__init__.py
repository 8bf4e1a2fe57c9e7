"""Examines a node: whether this driver can serve it, what is amiss, and what to do about it. Only reads.

``examination`` puts the checks of the other modules together; each gives findings. A node is seen through ``host``: its
own root, or a folder that holds another one's.
"""
