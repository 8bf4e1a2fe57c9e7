"""The admission webhook: claims and templates whose config this driver would refuse are refused when they are made.

It sees nothing but what the API server sends, keeps nothing, and calls nobody. What is wrong with a config is said by
``dra_driver.validation``, as for ``dra-driver validate``.
"""
