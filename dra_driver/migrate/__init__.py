"""``dra-driver migrate``: how GPUs were shared before, as DRA objects, values of the chart and a plan. Pure."""
