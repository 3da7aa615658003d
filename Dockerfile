# The image of `mcm serve`: one binary on a base without a shell, as an unprivileged user.
#
#   docker build --build-arg GIT_COMMIT=$(git rev-parse --short HEAD) -t REGISTRY/machine-controller-manager:0.1.0 .
FROM docker.io/library/rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
ARG GIT_COMMIT
ENV MCM_GIT_COMMIT=${GIT_COMMIT}
RUN cargo build --profile dist --locked --bin mcm
# By the names of the Go programs it is that half, and needs no subcommand.
RUN mkdir /halves \
 && ln -s /usr/local/bin/mcm /halves/machine-controller-manager \
 && ln -s /usr/local/bin/mcm /halves/machine-controller

# Debian 12 as above: the binary needs its libc and libgcc, nothing else.
FROM gcr.io/distroless/cc-debian12:nonroot AS base
COPY --from=build /src/target/dist/mcm /usr/local/bin/mcm
COPY --from=build /halves/ /
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
