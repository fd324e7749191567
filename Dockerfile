# A FlowCatalyst router. docs/operations.md says how to run it.
#
#   docker build -t flowcatalyst .
#   docker run --stop-timeout 100 ... flowcatalyst router

FROM python:3.11-slim AS build
WORKDIR /source
COPY requirements.lock requirements-extras.lock pyproject.toml README.md LICENSE ./
COPY src ./src
# Which brokers it knows: --build-arg EXTRAS=nats. ActiveMQ's client needs a C compiler, which this image does not have.
ARG EXTRAS=sqs,nats,postgres,redis,http2,otel
RUN python -m venv /opt/flowcatalyst \
    && /opt/flowcatalyst/bin/pip install --no-cache-dir --disable-pip-version-check \
    --constraint requirements.lock --constraint requirements-extras.lock ".[${EXTRAS}]"

FROM python:3.11-slim
RUN useradd --system --uid 10001 --user-group --home-dir /data --shell /usr/sbin/nologin flowcatalyst \
    && install --directory --owner flowcatalyst --group flowcatalyst --mode 0700 /data
COPY --from=build /opt/flowcatalyst /opt/flowcatalyst
ENV PATH=/opt/flowcatalyst/bin:$PATH \
    FLOWCATALYST_DATA_DIR=/data
USER flowcatalyst
WORKDIR /data
VOLUME /data
EXPOSE 8080

# The first SIGTERM drains, which may take more than a minute: stop it with a grace period of 100 s.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('FLOWCATALYST_PORT', '8080') + '/health/live', timeout=4)"]

# As a list: flowcatalyst itself is process 1 and gets the signals.
ENTRYPOINT ["flowcatalyst"]
CMD ["router"]
