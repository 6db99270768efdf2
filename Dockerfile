# CPU image of the tested stack with the three simulators.
#
#   docker build --tag rcdt_agent .
#   docker run --rm rcdt_agent                # make demo
#   docker run --rm rcdt_agent make test
#
# pip's own variables name another package index, such as one with CPU builds of torch:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=... --tag rcdt_agent .
FROM python:3.11-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends make g++ git libgl1 libglib2.0-0 libegl1 \
    && rm -rf /var/lib/apt/lists/*

ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /rcdt_agent
COPY . .
RUN make install

CMD ["make", "demo"]
