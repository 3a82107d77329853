"""Kept until every importer uses its new place."""

from sglang_adaptive.client import Client, RequestError  # noqa: F401
