;; Makes its table larger and larger.
(func $evaluate (param $request i32) (result i32)
  (if (i32.eqz (call $tried (local.get $request)))
    (then (loop $again (drop (table.grow $table (ref.null func) (i32.const 1000))) (br $again))))
  (global.get $decision))
