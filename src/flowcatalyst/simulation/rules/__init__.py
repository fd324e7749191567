"""The rules a history is judged by. Each is a pure function and knows one promise only."""
