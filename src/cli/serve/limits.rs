//! The flags of limits, and the values that are allowed.
//!
//! Source: spec/extension-apiserver §4.4.

use std::{num::NonZeroUsize, time::Duration};

use clap::Args;

use super::problems::Problems;
use kube_listener::{ConnectionLimits, Http2Limits, Limits, RequestLimits};
use kube_values::duration::GoDuration;

/// Limits of connections and requests.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits (all ports)")]
pub struct LimitArgs {
    /// Deadline of a TLS handshake
    #[arg(long, default_value = "10s", value_name = "DURATION", allow_hyphen_values = true)]
    pub tls_handshake_timeout: GoDuration,
    /// Deadline for the head of a request
    #[arg(long, default_value = "10s", value_name = "DURATION", allow_hyphen_values = true)]
    pub read_header_timeout: GoDuration,
    /// Time without a request after which a connection is closed
    #[arg(long, default_value = "1m30s", value_name = "DURATION", allow_hyphen_values = true)]
    pub idle_timeout: GoDuration,
    /// Time for which a client reads nothing of an answer before its connection is closed
    #[arg(long, default_value = "1m", value_name = "DURATION", allow_hyphen_values = true)]
    pub write_timeout: GoDuration,
    /// Age at which a connection is closed once its requests are answered; up to a tenth is added at random
    #[arg(long, default_value = "10m", value_name = "DURATION", allow_hyphen_values = true)]
    pub max_connection_age: GoDuration,
    /// Maximum number of connections per port
    #[arg(long, default_value = "1000", value_name = "N", allow_negative_numbers = true)]
    pub max_connections: i64,
    /// Maximum number of connections per address; connections of front proxies do not count
    #[arg(long, default_value = "200", value_name = "N", allow_negative_numbers = true)]
    pub max_connections_per_address: i64,
    /// Connections beyond --max-connections, for health requests only
    #[arg(long, default_value = "16", value_name = "N", allow_negative_numbers = true)]
    pub max_health_connections: i64,
    /// Maximum size of a request's head
    #[arg(long, default_value = "65536", value_name = "BYTES", allow_negative_numbers = true)]
    pub max_header_bytes: i64,
    /// Maximum number of fields in a request's head
    #[arg(long, default_value = "200", value_name = "N", allow_negative_numbers = true)]
    pub max_header_fields: i64,
    /// Maximum size of a request's path and query
    #[arg(long, default_value = "16384", value_name = "BYTES", allow_negative_numbers = true)]
    pub max_path_bytes: i64,
    /// Maximum number of concurrent requests on an HTTP/2 connection
    #[arg(long, default_value = "100", value_name = "N", allow_negative_numbers = true)]
    pub http2_max_streams_per_connection: i64,
    /// Flow-control window of an HTTP/2 stream
    #[arg(long, default_value = "262144", value_name = "BYTES", allow_negative_numbers = true)]
    pub http2_stream_window: i64,
    /// Flow-control window of an HTTP/2 connection
    #[arg(long, default_value = "1048576", value_name = "BYTES", allow_negative_numbers = true)]
    pub http2_connection_window: i64,
    /// Maximum size of an HTTP/2 frame
    #[arg(long, default_value = "262144", value_name = "BYTES", allow_negative_numbers = true)]
    pub http2_max_frame_bytes: i64,
    /// Interval of pings on an HTTP/2 connection
    #[arg(long, default_value = "30s", value_name = "DURATION", allow_hyphen_values = true)]
    pub http2_ping_interval: GoDuration,
    /// Deadline for the answer to such a ping
    #[arg(long, default_value = "10s", value_name = "DURATION", allow_hyphen_values = true)]
    pub http2_ping_timeout: GoDuration,
    /// Maximum number of requests that a client may reset before their answer on an HTTP/2 connection within 10 seconds
    #[arg(long, default_value = "100", value_name = "N", allow_negative_numbers = true)]
    pub http2_max_resets: i64,
    /// Maximum number of messages per second, such as pings, on an HTTP/2 connection without requests
    #[arg(long, default_value = "2", value_name = "N", allow_negative_numbers = true)]
    pub http2_max_pings_per_second: i64,
    /// Deadline for the body of a request
    #[arg(long, default_value = "30s", value_name = "DURATION", allow_hyphen_values = true)]
    pub body_timeout: GoDuration,
    /// How long a body may arrive more slowly than --min-body-rate
    #[arg(long, default_value = "5s", value_name = "DURATION", allow_hyphen_values = true)]
    pub body_grace_period: GoDuration,
    /// Minimum rate at which a body arrives, in bytes per second
    #[arg(long, default_value = "1024", value_name = "BYTES", allow_negative_numbers = true)]
    pub min_body_rate: i64,
    /// Maximum size of an admission review
    #[arg(long, default_value = "8388608", value_name = "BYTES", allow_negative_numbers = true)]
    pub max_admission_bytes: i64,
    /// Maximum size of a conversion review
    #[arg(long, default_value = "67108864", value_name = "BYTES", allow_negative_numbers = true)]
    pub max_conversion_bytes: i64,
    /// Maximum size of the body of any other request
    #[arg(long, default_value = "3145728", value_name = "BYTES", allow_negative_numbers = true)]
    pub max_request_bytes: i64,
    /// Maximum number of concurrent admission reviews; callers of further reviews have to retry
    #[arg(long, default_value = "200", value_name = "N", allow_negative_numbers = true)]
    pub max_inflight_admission: i64,
    /// Maximum number of concurrent conversion reviews; callers of further reviews have to retry
    #[arg(long, default_value = "50", value_name = "N", allow_negative_numbers = true)]
    pub max_inflight_conversion: i64,
    /// Deadline of a review, even if its caller allows a longer one
    #[arg(long, default_value = "30s", value_name = "DURATION", allow_hyphen_values = true)]
    pub review_timeout: GoDuration,
}

impl LimitArgs {
    /// The settings of the flags.
    pub(super) fn settings(&self, problems: &mut Problems) -> Limits {
        let read = &mut Reader(problems);
        let defaults = RequestLimits::default();
        let admission_bytes = read.number("--max-admission-bytes", self.max_admission_bytes);
        let conversion_bytes = read.number("--max-conversion-bytes", self.max_conversion_bytes);
        Limits {
            connections: ConnectionLimits {
                handshake: read.time("--tls-handshake-timeout", self.tls_handshake_timeout),
                header: read.time("--read-header-timeout", self.read_header_timeout),
                idle: read.time("--idle-timeout", self.idle_timeout),
                write: read.time("--write-timeout", self.write_timeout),
                header_bytes: read.within("--max-header-bytes", self.max_header_bytes, 8 << 10, 16 << 20),
                header_fields: read.number("--max-header-fields", self.max_header_fields),
                path_bytes: read.number("--max-path-bytes", self.max_path_bytes),
                connections: read.number("--max-connections", self.max_connections),
                kept_for_health: read.within("--max-health-connections", self.max_health_connections, 0, 10_000)
                    as usize,
                connections_per_peer: read.number("--max-connections-per-address", self.max_connections_per_address),
                max_age: read.time("--max-connection-age", self.max_connection_age),
                http2: self.http2(read),
                ..ConnectionLimits::default()
            },
            requests: RequestLimits {
                admission_bytes,
                conversion_bytes,
                // The memory for all reviews must be enough for one review.
                large_bytes: defaults.large_bytes.max(conversion_bytes),
                large_admission_bytes: defaults.large_admission_bytes.max(admission_bytes),
                other_bytes: read.number("--max-request-bytes", self.max_request_bytes),
                admission_in_flight: read.number("--max-inflight-admission", self.max_inflight_admission),
                conversion_in_flight: read.number("--max-inflight-conversion", self.max_inflight_conversion),
                body: read.time("--body-timeout", self.body_timeout),
                body_grace: read.time("--body-grace-period", self.body_grace_period),
                body_bytes_per_second: read.within("--min-body-rate", self.min_body_rate, 1, u32::MAX),
                default_timeout: read.time("--review-timeout", self.review_timeout),
                ..defaults
            },
        }
    }

    fn http2(&self, read: &mut Reader<'_>) -> Http2Limits {
        // RFC 9113 §6.5.2.
        let window = (1, (1 << 31) - 1);
        Http2Limits {
            streams: read.within(
                "--http2-max-streams-per-connection",
                self.http2_max_streams_per_connection,
                1,
                1 << 20,
            ),
            stream_window: read.within("--http2-stream-window", self.http2_stream_window, window.0, window.1),
            connection_window: read.within("--http2-connection-window", self.http2_connection_window, 65_535, window.1),
            frame_bytes: read.within("--http2-max-frame-bytes", self.http2_max_frame_bytes, 1 << 14, (1 << 24) - 1),
            ping_interval: read.time("--http2-ping-interval", self.http2_ping_interval),
            ping_timeout: read.time("--http2-ping-timeout", self.http2_ping_timeout),
            resets: read.within("--http2-max-resets", self.http2_max_resets, 1, 1 << 20),
            pings_per_second: read.within("--http2-max-pings-per-second", self.http2_max_pings_per_second, 1, 1 << 20),
        }
    }
}

/// Reads values that must not be zero.
struct Reader<'a>(&'a mut Problems);

impl Reader<'_> {
    fn time(&mut self, flag: &str, value: GoDuration) -> Duration {
        if value <= GoDuration::ZERO {
            self.0.add(format!("{flag}: must be greater than 0: got {value}"));
        }
        value.to_std()
    }

    fn number(&mut self, flag: &str, value: i64) -> usize {
        let read = usize::try_from(value).ok().and_then(NonZeroUsize::new);
        if read.is_none() {
            self.0.add(format!("{flag}: must be greater than 0: got {value}"));
        }
        read.map_or(1, NonZeroUsize::get)
    }

    fn within(&mut self, flag: &str, value: i64, least: u32, most: u32) -> u32 {
        let read = u32::try_from(value).ok().filter(|value| (least..=most).contains(value));
        read.unwrap_or_else(|| {
            self.0.add(format!("{flag}: must be from {least} to {most}: got {value}"));
            least
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        limits: LimitArgs,
    }

    fn read(flags: &[&str]) -> Result<Limits, Vec<String>> {
        let line = Line::try_parse_from(["mcm"].iter().chain(flags)).expect("flags parse");
        let mut problems = Problems::default();
        let limits = line.limits.settings(&mut problems);
        problems.none().map(|()| limits)
    }

    #[test]
    fn the_defaults_are_the_limits_of_the_specification() {
        assert_eq!(read(&[]).unwrap(), Limits::default());
    }

    #[test]
    fn every_flag_changes_the_limit_it_names() {
        let limits = read(&[
            "--tls-handshake-timeout=1s",
            "--read-header-timeout=2s",
            "--idle-timeout=3s",
            "--write-timeout=4s",
            "--max-connection-age=5s",
            "--max-connections=6",
            "--max-connections-per-address=7",
            "--max-health-connections=0",
            "--max-header-bytes=8192",
            "--max-header-fields=9",
            "--max-path-bytes=10",
            "--http2-max-streams-per-connection=11",
            "--http2-stream-window=12",
            "--http2-connection-window=65536",
            "--http2-max-frame-bytes=16384",
            "--http2-ping-interval=15s",
            "--http2-ping-timeout=16s",
            "--http2-max-resets=17",
            "--http2-max-pings-per-second=18",
            "--body-timeout=19s",
            "--body-grace-period=20s",
            "--min-body-rate=21",
            "--max-admission-bytes=22",
            "--max-conversion-bytes=23",
            "--max-request-bytes=24",
            "--max-inflight-admission=25",
            "--max-inflight-conversion=26",
            "--review-timeout=27s",
        ]);
        let seconds = Duration::from_secs;
        let expected = Limits {
            connections: ConnectionLimits {
                handshake: seconds(1),
                header: seconds(2),
                idle: seconds(3),
                write: seconds(4),
                max_age: seconds(5),
                connections: 6,
                connections_per_peer: 7,
                kept_for_health: 0,
                header_bytes: 8192,
                header_fields: 9,
                path_bytes: 10,
                http2: Http2Limits {
                    streams: 11,
                    stream_window: 12,
                    connection_window: 65536,
                    frame_bytes: 16384,
                    ping_interval: seconds(15),
                    ping_timeout: seconds(16),
                    resets: 17,
                    pings_per_second: 18,
                },
                ..ConnectionLimits::default()
            },
            requests: RequestLimits {
                body: seconds(19),
                body_grace: seconds(20),
                body_bytes_per_second: 21,
                admission_bytes: 22,
                conversion_bytes: 23,
                other_bytes: 24,
                admission_in_flight: 25,
                conversion_in_flight: 26,
                default_timeout: seconds(27),
                ..RequestLimits::default()
            },
        };
        assert_eq!(limits, Ok(expected));
    }

    #[rstest]
    #[case::no_review_at_a_time("--max-inflight-admission=0", "must be greater than 0: got 0")]
    #[case::no_time("--idle-timeout=0s", "must be greater than 0: got 0s")]
    #[case::negative_time("--body-timeout=-1s", "must be greater than 0: got -1s")]
    #[case::a_head_that_is_too_small("--max-header-bytes=100", "must be from 8192 to 16777216: got 100")]
    #[case::no_frame_of_http2("--http2-max-frame-bytes=16777216", "must be from 16384 to 16777215: got 16777216")]
    #[case::no_window_of_http2("--http2-stream-window=2147483648", "must be from 1 to 2147483647: got 2147483648")]
    fn impossible_limits_are_refused(#[case] flag: &str, #[case] why: &str) {
        let name = flag.split('=').next().unwrap();
        assert_eq!(read(&[flag]), Err(vec![format!("{name}: {why}")]));
    }
}
