"""``dra-driver explain``: why a pod waits for its GPU, or why it has this one. Pure but for ``sources``."""
