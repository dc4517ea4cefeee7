//! Hands out memory and takes none back.
//!
//! A policy lives for one call in an instance of its own, so there is nobody to give memory back to. Most of what a
//! call costs is taking the request in, which is allocation; this makes it a few instructions each, and keeps a
//! general allocator out of the component. What `configure` leaves behind stays in the snapshot: settings are small.

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    ptr::null_mut,
};

const PAGE_BYTES: usize = 64 << 10;

struct Bump {
    /// The first free byte; 0 before the first allocation.
    next: Cell<usize>,
    /// The end of the memory there is.
    end: Cell<usize>,
}

// SAFETY: the target has no threads.
unsafe impl Sync for Bump {}

#[global_allocator]
static BUMP: Bump = Bump { next: Cell::new(0), end: Cell::new(0) };

unsafe extern "C" {
    /// Where the linker ends the data; its address is what counts.
    static __heap_base: u8;
}

impl Bump {
    /// Returns the start of `bytes` free bytes at a multiple of `align`, or 0 where there is no more memory.
    fn take(&self, bytes: usize, align: usize) -> usize {
        if self.next.get() == 0 {
            self.next.set(&raw const __heap_base as usize);
            self.end.set(core::arch::wasm32::memory_size(0) * PAGE_BYTES);
        }
        let start = (self.next.get() + align - 1) & !(align - 1);
        let Some(after) = start.checked_add(bytes) else { return 0 };
        if after > self.end.get() {
            let pages = (after - self.end.get()).div_ceil(PAGE_BYTES);
            if core::arch::wasm32::memory_grow(0, pages) == usize::MAX {
                return 0;
            }
            self.end.set(self.end.get() + pages * PAGE_BYTES);
        }
        self.next.set(after);
        start
    }
}

// SAFETY: every block lies between the linker's data and the end of memory, and no two overlap, as `next` only grows
// past them, or goes back over the last one when its owner resizes or frees it.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.take(layout.size(), layout.align()) {
            0 => null_mut(),
            start => start as *mut u8,
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if block as usize + layout.size() == self.next.get() {
            self.next.set(block as usize);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if block as usize + layout.size() == self.next.get() {
            // The last block grows and shrinks where it is.
            let before = self.next.replace(block as usize);
            return match self.take(size, layout.align()) {
                0 => {
                    self.next.set(before);
                    null_mut()
                }
                start => start as *mut u8,
            };
        }
        if size <= layout.size() {
            return block;
        }
        match self.take(size, layout.align()) {
            0 => null_mut(),
            start => {
                // SAFETY: the old block has `layout.size()` bytes, the new one more, and they do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(block, start as *mut u8, layout.size()) };
                start as *mut u8
            }
        }
    }
}
