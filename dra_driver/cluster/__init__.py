"""The Kubernetes API server, through the official client: claims, slices, the Node, events."""
