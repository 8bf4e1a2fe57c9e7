"""What is wrong in claims, templates, classes and configs, said before a node sees them.

``dra-driver validate`` and the admission webhook are two ways to it. Pure: objects in, findings out. The config itself
is decoded by ``dra_driver_api``, and ``claims.configs`` has the words for a strategy that is not served.
"""
