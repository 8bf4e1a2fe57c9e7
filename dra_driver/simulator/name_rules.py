"""Shapes of names in the Kubernetes API. Pure functions.

Rules: ``k8s.io/apimachinery/pkg/util/validation``.
"""

import re

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_IDENTIFIER = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")

MAX_LABEL = 63
MAX_SUBDOMAIN = 253
MAX_DOMAIN = 63
MAX_IDENTIFIER = 32


def dns_label(text: object) -> bool:
    """RFC 1123 label: at most 63 of ``a-z0-9-``, alphanumeric at both ends."""
    return isinstance(text, str) and len(text) <= MAX_LABEL and _LABEL.match(text) is not None


def dns_subdomain(text: object) -> bool:
    """RFC 1123 subdomain: at most 253 characters, labels joined by dots."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_SUBDOMAIN:
        return False
    return all(_LABEL.match(part) for part in text.split("."))


def c_identifier(text: str) -> bool:
    """An identifier of at most 32 characters, as attribute and capacity names end."""
    return len(text) <= MAX_IDENTIFIER and _IDENTIFIER.match(text) is not None


def qualified_name(text: str) -> bool:
    """``[domain/]identifier``, the name of a device attribute or capacity."""
    domain, slash, identifier = text.rpartition("/")
    if slash and not (dns_subdomain(domain) and len(domain) <= MAX_DOMAIN):
        return False
    return c_identifier(identifier)


def label_value(text: object) -> bool:
    """A label value: at most 63 characters, may be empty."""
    return isinstance(text, str) and len(text) <= MAX_LABEL and _LABEL_VALUE.match(text) is not None


def label_key(text: object) -> bool:
    """A label key: ``[subdomain/]name``."""
    if not isinstance(text, str):
        return False
    prefix, slash, name = text.rpartition("/")
    return (not slash or dns_subdomain(prefix)) and bool(name) and label_value(name)
