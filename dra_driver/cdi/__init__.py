"""What a container gets: CDI specs, the driver files and device nodes in them, and the directory they lie in.

Nothing here knows of claims beyond their UID, of the kubelet, or of how a GPU is shared.
"""
