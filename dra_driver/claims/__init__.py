"""A claim's life on this node. allocation, configs, conflicts and planning are pure; lifecycle acts on them."""
