"""Amazon SQS, and servers that speak its protocol."""
