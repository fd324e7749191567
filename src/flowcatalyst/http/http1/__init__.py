"""Our HTTP/1.1 client. Use `client`; nobody else may look inside."""
