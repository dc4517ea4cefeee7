;; Waits for ever for a notice that nobody gives: the one way to sleep without an import.
(func $start (drop (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1))))
(start $start)
