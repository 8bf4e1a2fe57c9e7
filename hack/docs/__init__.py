"""The documentation site: reference pages generated from the code, and what MkDocs needs to take the rest as it is."""
