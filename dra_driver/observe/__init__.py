"""What others can see of the driver: metrics, readiness and their pages. Nothing here acts on a claim."""
