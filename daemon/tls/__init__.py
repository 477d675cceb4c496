"""TLS for HTTP, gRPC and the admin port: files of the site's own, or a certificate authority made here."""
