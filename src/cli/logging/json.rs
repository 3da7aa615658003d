//! Lines in JSON: time, level, message and module first, then the fields of the spans around the line, then its own.

use std::fmt::{self, Write};

use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormattedFields,
        format::{JsonFields, Writer},
    },
    registry::LookupSpan,
};

/// The name that tracing gives to the message of an event.
const MESSAGE: &str = "message";

/// Writes one JSON object per line ([`super::fields::schema`]).
pub struct JsonLine;

impl<S> FormatEvent<S, JsonFields> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Map::new();
        for span in context.event_scope().into_iter().flat_map(tracing_subscriber::registry::Scope::from_root) {
            let extensions = span.extensions();
            let text = extensions.get::<FormattedFields<JsonFields>>().map(|known| known.fields.as_str());
            if let Some(Ok(Value::Object(of_span))) = text.map(serde_json::from_str) {
                fields.extend(of_span);
            }
        }
        event.record(&mut Fields(&mut fields));
        let message = fields.remove(MESSAGE).unwrap_or_default();
        let metadata = event.metadata();
        let frame = [
            Value::from(Timestamp::now().to_string()),
            Value::from(metadata.level().as_str()),
            message,
            Value::from(metadata.target()),
        ];
        writeln!(writer, "{}", line(&frame, &fields)?)
    }
}

/// The members of the frame in their order, then the fields.
fn line(frame: &[Value; 4], fields: &Map<String, Value>) -> Result<String, fmt::Error> {
    let mut line = "{".to_owned();
    for (name, value) in super::fields::FRAME.iter().zip(frame) {
        let comma = if line.len() > 1 { "," } else { "" };
        write!(line, "{comma}\"{name}\":{value}")?;
    }
    for (name, value) in fields {
        write!(line, ",{}:{value}", Value::from(name.as_str()))?;
    }
    line.push('}');
    Ok(line)
}

/// Collects the fields of an event.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.put(field, u64::try_from(value).unwrap_or(u64::MAX));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::cli::logging::fields::schema;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn pk_101_a_line_has_its_frame_first_and_the_fields_of_its_pass() {
        let lines = Lines::default();
        let sink = lines.clone();
        let layer = tracing_subscriber::fmt::layer().fmt_fields(JsonFields::new()).event_format(JsonLine);
        let subscriber = tracing_subscriber::registry().with(layer.with_writer(move || sink.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("pass", kind = "Machine", namespace = "ns", name = "m", pass = 7_u64);
            span.in_scope(|| tracing::info!(rule = "r", error = ?"a\nb", took_ms = 5_u128, "a \"message\""));
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with(r#"{"ts":"#) && text.ends_with("}\n") && text.lines().count() == 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["msg"], "a \"message\"");
        for (name, value) in [("kind", "Machine"), ("namespace", "ns"), ("name", "m"), ("rule", "r"), ("level", "INFO")]
        {
            assert_eq!(line[name], value, "{text}");
        }
        assert_eq!((&line["pass"], &line["took_ms"]), (&Value::from(7), &Value::from(5)));
        let schema = jsonschema::validator_for(&schema()).unwrap();
        assert!(schema.is_valid(&line), "{text}");
    }
}
