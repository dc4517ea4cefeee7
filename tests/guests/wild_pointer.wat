;; Says that its answer lies outside its memory.
(func $evaluate (param $request i32) (result i32)
  (select (global.get $decision) (i32.const 0x7ffffff8) (call $tried (local.get $request))))
