;; Takes memory page by page.
(func $evaluate (param $request i32) (result i32)
  (if (i32.eqz (call $tried (local.get $request)))
    (then (loop $again (drop (memory.grow (i32.const 1))) (br $again))))
  (global.get $decision))
