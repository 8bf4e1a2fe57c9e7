"""What ``dra-driver validate`` finds in manifests: reading YAML with its lines, and the checks. Prints nothing."""
