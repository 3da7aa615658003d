# The image of `mcm serve`: one static file on an empty base, without a shell, as an unprivileged user.
#
#   docker build --build-arg GIT_COMMIT=$(git rev-parse HEAD) -t REGISTRY/machine-controller-manager:0.1.0 .
#
# `scripts/image` makes the same image from a built binary, without a daemon. Releases name the builder by its digest (RUST_IMAGE).
ARG RUST_IMAGE=docker.io/library/rust:1.95-bookworm
FROM ${RUST_IMAGE} AS build
WORKDIR /src
# The list of dependencies goes into the binary, where scanners read it.
RUN cargo install --locked cargo-auditable@0.7.7
COPY . .
ARG GIT_COMMIT
ENV MCM_GIT_COMMIT=${GIT_COMMIT}
RUN scripts/image-root "$(scripts/image-binary)" /image

FROM scratch AS root
COPY --from=build /image/ /

FROM scratch AS base
COPY --from=root / /
ARG VERSION
ARG GIT_COMMIT
LABEL org.opencontainers.image.title="machine-controller-manager" \
  org.opencontainers.image.description="Declarative virtual machines for Kubernetes" \
  org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.version="${VERSION}" \
  org.opencontainers.image.revision="${GIT_COMMIT}"
# Pods that were written for the Go binaries say `./machine-controller-manager`.
WORKDIR /
# By number, so that `runAsNonRoot` can be judged without a look into the image.
USER 65532:65532
# Webhooks; health and metrics; the second listener of health and metrics.
EXPOSE 9443 10258 10259

# For containers that give flags only, as the sidecar of a provider extension does: `docker build --target machine-controller`.
FROM base AS machine-controller
ENTRYPOINT ["/machine-controller"]

FROM base
ENTRYPOINT ["/usr/local/bin/mcm"]
CMD ["serve"]
