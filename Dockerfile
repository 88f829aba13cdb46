# playproof with its machine code made ahead of time, for any CPU of the architecture:
#   docker build -t playproof . && docker run --rm -v "$PWD:/work" playproof replay traces --out out
FROM python:3.12-slim

# The processor that the code is made for. `generic` runs everywhere; x86-64-v3 is faster, on machines since 2013.
ARG CPU=generic
ENV NUMBA_CPU_NAME=${CPU} \
    NUMBA_CPU_FEATURES="" \
    PLAYPROOF_CACHE_DIR=/opt/playproof/code \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /opt/playproof/source
COPY . .
# What is warmed serves whoever runs the image; it is read, and nothing has to be written.
RUN pip install --constraint constraints.txt ".[online,tables]" \
    && playproof warm examples/weka --config examples/deployment.yaml --online \
    && playproof warm examples/weka --config examples/disaggregated.yaml \
    && playproof warm examples/weka --set engine.backend=sglang \
    && chmod -R a+rX /opt/playproof

WORKDIR /work
ENTRYPOINT ["playproof"]
CMD ["--help"]
