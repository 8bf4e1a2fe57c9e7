"""Manifests of nodes and of those who install without Helm: right in themselves, and of one mind with the chart."""
