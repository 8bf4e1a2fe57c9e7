"""Ways of sharing a GPU, one strategy a module. Pure: a strategy says which steps a card needs, others take them."""
