"""ActiveMQ Classic and Artemis, over AMQP 1.0."""
