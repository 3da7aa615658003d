//! The cost of a review: peak memory, allocations, and how both grow with the object. `cargo bench --bench webhooks limits` measures the processor
//! time.
//!
//! This is a separate binary, because it counts every allocation of the process.

#![allow(unsafe_code, reason = "an allocator that counts is a global allocator")]

#[path = "limits/mod.rs"]
mod limits;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use kube_values::json::Json;
use limits::{ReviewKind, Sample, samples};
use machine_api::{
    admission::{ANSWER_MAX, Admission, convert},
    validation::Policy,
};

/// The system's allocator, with counters per thread.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn grown(by: usize) {
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + by.cast_signed());
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
    let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() + by));
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

fn shrunk(by: usize) {
    let _ = LIVE.try_with(|live| live.set(live.get() - by.cast_signed()));
}

// SAFETY: every call is forwarded unchanged to the system's allocator; the counters allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller guarantees a valid layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        shrunk(layout.size());
        // SAFETY: the caller guarantees that the pointer comes from this allocator with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        shrunk(layout.size());
        grown(size);
        // SAFETY: the caller guarantees a valid pointer, layout and size.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The cost of a piece of work.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// The highest number of bytes that were allocated at a time.
    peak: usize,
    /// The number of bytes of all allocations together.
    bytes: usize,
    /// The number of allocations.
    calls: usize,
}

fn measured<T>(work: impl FnOnce() -> T) -> (Cost, T) {
    let (live, bytes, calls) = (LIVE.get(), BYTES.get(), CALLS.get());
    PEAK.set(live);
    let done = work();
    let peak = (PEAK.get() - live).max(0).cast_unsigned();
    (Cost { peak, bytes: BYTES.get() - bytes, calls: CALLS.get() - calls }, done)
}

/// The length of the answer.
fn answer(sample: &Sample) -> usize {
    match sample.review_kind {
        ReviewKind::Admission(endpoint) => Admission::new(Policy::default()).review(endpoint, &sample.body).body.len(),
        ReviewKind::Conversion => convert(&sample.body).body.len(),
    }
}

/// The cost of parsing the objects of a review, which cannot be avoided.
fn reading(sample: &Sample) -> Cost {
    measured(|| drop(serde_json::from_slice::<Json<'_>>(&sample.body))).0
}

/// The bytes that a review may allocate in addition to the parsing of its objects: four times the body and a megabyte. The answer of a conversion may
/// be longer than its body, because conditions of a status get fields that v1alpha1 omits; then the answer counts.
fn allowed(sample: &Sample, answer: usize) -> usize {
    const MIB: usize = 1 << 20;
    4 * sample.body.len().max(answer) + MIB
}

#[test]
fn the_memory_of_a_review_is_bounded() {
    let mut failed = Vec::new();
    // The first review of a process builds the field tables of the schemas, once.
    samples(1, 1).first().map(answer);
    for sample in samples(1, 1) {
        let read = reading(&sample);
        let (cost, length) = measured(|| answer(&sample));
        let name = format!("{} ({:?}, {} bytes)", sample.name, sample.review_kind, sample.body.len());
        println!(
            "{name}: reading {} of {}, peak {}, all {}, answer {length}",
            read.peak, read.bytes, cost.peak, cost.bytes
        );
        for (counted, took, reading) in [("at a time", cost.peak, read.peak), ("in all", cost.bytes, read.bytes)] {
            let allowed = reading + allowed(&sample, length);
            if took > allowed {
                failed.push(format!("{name}: {took} bytes {counted}, allowed {allowed}"));
            }
        }
        if sample.review_kind != ReviewKind::Conversion && length > ANSWER_MAX {
            failed.push(format!("{name}: an answer of {length} bytes"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// An object of twice the size may cost at most 2.2 times the allocations.
#[test]
fn allocations_grow_no_faster_than_the_object() {
    let (half, whole) = (samples(1, 2), samples(1, 1));
    let mut failed = Vec::new();
    for (half, whole) in half.iter().zip(&whole) {
        let ((small, _), (large, _)) = (measured(|| answer(half)), measured(|| answer(whole)));
        // The constant cost of a small review does not grow, and does not count.
        let grew = |small: usize, large: usize, ground: usize| large > ground && large * 10 > small.max(ground) * 22;
        // A sample may grow in two dimensions at once; then the body size shows by how much.
        let by_body = whole.body.len() * 10 > half.body.len() * 25;
        if !by_body && (grew(small.calls, large.calls, 2_000) || grew(small.bytes, large.bytes, 1 << 20)) {
            failed.push(format!("{} ({:?}): {small:?} becomes {large:?}", whole.name, whole.review_kind));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
