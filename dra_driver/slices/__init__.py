"""ResourceSlices: what the cluster is told of this node, built from the inventory and kept equal there."""
