//! What a review costs: memory at a time, allocations, and how both grow with the object. What it takes of a processor is
//! measured by `cargo bench --bench webhooks limits`.
//!
//! A binary of its own, since it counts every allocation of the process.

#![allow(unsafe_code, reason = "an allocator that counts is a global allocator")]

#[path = "limits/mod.rs"]
mod limits;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use kube_values::json::Json;
use limits::{Door, Sample, samples};
use machine_api::{
    admission::{ANSWER_MAX, Admission, convert},
    validation::Policy,
};

/// The system's allocator, counting what each thread does.
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

// SAFETY: every call is handed to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise about the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        shrunk(layout.size());
        // SAFETY: the caller's promise that the pointer came from here with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        shrunk(layout.size());
        grown(size);
        // SAFETY: the caller's promises about pointer, layout and size.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a piece of work took.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Most bytes that lived at a time.
    peak: usize,
    /// Bytes of all allocations together.
    bytes: usize,
    /// Allocations.
    calls: usize,
}

fn measured<T>(work: impl FnOnce() -> T) -> (Cost, T) {
    let (live, bytes, calls) = (LIVE.get(), BYTES.get(), CALLS.get());
    PEAK.set(live);
    let done = work();
    let peak = (PEAK.get() - live).max(0).cast_unsigned();
    (Cost { peak, bytes: BYTES.get() - bytes, calls: CALLS.get() - calls }, done)
}

/// The answer's length.
fn answer(sample: &Sample) -> usize {
    match sample.door {
        Door::Admission(endpoint) => Admission::new(Policy::default()).review(endpoint, &sample.body).body.len(),
        Door::Conversion => convert(&sample.body).body.len(),
    }
}

/// What it takes to read the objects of a review, which nobody can avoid.
fn reading(sample: &Sample) -> Cost {
    measured(|| drop(serde_json::from_slice::<Json<'_>>(&sample.body))).0
}

/// Bytes that a review may take beside those of reading its objects: four times the body and a megabyte. A conversion may answer
/// with more than its body, since conditions of a status get fields that v1alpha1 leaves out; then the answer counts.
fn allowed(sample: &Sample, answer: usize) -> usize {
    const MIB: usize = 1 << 20;
    4 * sample.body.len().max(answer) + MIB
}

#[test]
fn the_memory_of_a_review_is_bounded() {
    let mut failed = Vec::new();
    // The first review of a process makes the shapes of fields of the schemas, once.
    samples(1, 1).first().map(answer);
    for sample in samples(1, 1) {
        let read = reading(&sample);
        let (cost, length) = measured(|| answer(&sample));
        let name = format!("{} ({:?}, {} bytes)", sample.name, sample.door, sample.body.len());
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
        if sample.door != Door::Conversion && length > ANSWER_MAX {
            failed.push(format!("{name}: an answer of {length} bytes"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Twice the object takes at most 2.2 times the allocations.
#[test]
fn allocations_grow_no_faster_than_the_object() {
    let (half, whole) = (samples(1, 2), samples(1, 1));
    let mut failed = Vec::new();
    for (half, whole) in half.iter().zip(&whole) {
        let ((small, _), (large, _)) = (measured(|| answer(half)), measured(|| answer(whole)));
        // What a small review takes beside its object does not grow, and does not count.
        let grew = |small: usize, large: usize, ground: usize| large > ground && large * 10 > small.max(ground) * 22;
        // A sample may grow in two directions at once; then the body says by how much.
        let by_body = whole.body.len() * 10 > half.body.len() * 25;
        if !by_body && (grew(small.calls, large.calls, 2_000) || grew(small.bytes, large.bytes, 1 << 20)) {
            failed.push(format!("{} ({:?}): {small:?} becomes {large:?}", whole.name, whole.door));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
