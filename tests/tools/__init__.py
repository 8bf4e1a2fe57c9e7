"""Tests of what helps development: bench, trace, images, the local cluster, the runs on real hardware."""
