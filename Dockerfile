# The image of `mcm serve`: one binary on a base without a shell.
FROM docker.io/library/rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
ARG GIT_COMMIT
ENV MCM_GIT_COMMIT=${GIT_COMMIT}
RUN cargo build --release --locked --bin mcm

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /src/target/release/mcm /usr/local/bin/mcm
# Caches of a controller fragment the heap of many arenas.
ENV MALLOC_ARENA_MAX=2
ENTRYPOINT ["/usr/local/bin/mcm"]
CMD ["serve"]
